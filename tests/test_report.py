"""The README and the docs say what the committed results say; an edit of either side is noticed."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import PAGES, RESULTS, ROOT, ReportError, main, rendered, stale_pages, stale_plots

NAMES = sorted(path.stem for path in (ROOT / RESULTS).glob("*.json"))
HYBRID = sorted(path.stem for path in (ROOT / RESULTS / "hybrid").glob("*.json"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the pages and of all that they are made from."""
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(ROOT / RESULTS, tmp_path / RESULTS)
    shutil.copytree(ROOT / report.PLOTS, tmp_path / report.PLOTS)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_pages_and_plots_are_what_the_results_say() -> None:
    assert stale_pages(ROOT) == []
    assert stale_plots(ROOT) == []
    assert main(["--check"]) == 0


def test_every_result_stands_on_a_page() -> None:
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    words = {word for block in report._BLOCK.findall(pages) for word in block[1].split()}
    assert NAMES
    assert HYBRID
    assert {*NAMES, *HYBRID} <= words


@pytest.mark.parametrize("name", NAMES)
def test_a_result_names_no_place_of_the_machine(name: str) -> None:
    result = report.load(ROOT, name)
    text = result.model_dump_json()
    assert platform.node() not in text
    assert not [word for word in result.command.split() if word.startswith(("/", "~"))]
    assert result.commit is not None
    assert not result.commit.endswith("-dirty")
    assert result.figures


def test_an_edited_page_is_noticed(copy: Path) -> None:
    assert stale_pages(copy) == []
    edit(copy / "README.md", "| kaminari |", "| Kaminari |")
    assert stale_pages(copy) == [Path("README.md")]


def test_an_edited_result_is_noticed(copy: Path) -> None:
    plot = next(each for each in report.wanted_plots(copy) if each[0] == "ladder")
    path = copy / RESULTS / f"{plot[1][0]}.json"
    edit(path, '"median": ', '"median": 9')
    assert stale_pages(copy)
    assert report.plot_path(*plot) in stale_plots(copy)


def test_a_page_that_was_edited_is_written_back(copy: Path) -> None:
    right = (copy / "README.md").read_text(encoding="utf-8")
    edit(copy / "README.md", "| kaminari |", "| Kaminari |")
    report.write(copy)
    assert (copy / "README.md").read_text(encoding="utf-8") == right


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("<!-- report: table nowhere -->\n<!-- /report -->", "no result nowhere"),
        ("<!-- report: dance ladder -->\n<!-- /report -->", "asks for 'dance ladder'"),
        ("<!-- report: table -->\n<!-- /report -->", "asks for 'table'"),
        ("<!-- report: plot pie ladder -->\n<!-- /report -->", "asks for 'plot pie ladder'"),
        ("<!-- report: compare -->\n<!-- /report -->", "asks for 'compare'"),
        ("<!-- report: compare decode-2b decode-demo -->\n<!-- /report -->", "do not stand in one table"),
        ("<!-- report: compare decode-2b prefill-2b -->\n<!-- /report -->", "do not stand in one table"),
        ("<!-- report: hybrid sides -->\n<!-- /report -->", "asks for 'hybrid sides'"),
        ("<!-- report: hybrid dance minicpm-v-tiers -->\n<!-- /report -->", "asks for 'hybrid dance"),
        ("<!-- report: hybrid sides nowhere -->\n<!-- /report -->", "no result nowhere"),
        ("<!-- report: hybrid parts minicpm-v-tiers -->\n<!-- /report -->", "cannot be made parts of"),
        ("<!-- report: table x -->\n", "without its end"),
    ],
)
def test_a_page_that_asks_for_nonsense_is_refused(copy: Path, block: str, reason: str) -> None:
    (copy / "README.md").write_text(block, encoding="utf-8")
    with pytest.raises(ReportError, match=reason):
        rendered(copy, "README.md")


def test_a_broken_result_is_refused(copy: Path) -> None:
    (copy / RESULTS / f"{NAMES[0]}.json").write_text('{"format": 1}', encoding="utf-8")
    with pytest.raises(ReportError, match="is no result"):
        report.load(copy, NAMES[0])


def test_a_broken_result_of_the_hybrid_decoder_is_refused(copy: Path) -> None:
    path = copy / RESULTS / "hybrid" / f"{HYBRID[0]}.json"
    for text in ("{", "{}", "[]"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ReportError, match=HYBRID[0]):
            rendered(copy, "docs/hybrid.md")


def test_several_runs_in_one_table_are_told_apart() -> None:
    plain, packed = (report.load(ROOT, name) for name in ("decode-2b", "decode-2b-int4"))
    lines = report._compare([plain, packed])
    rows = [line.split(" | ") for line in lines if line.startswith(("| bfloat16", "| int4"))]
    assert {row[0] for row in rows} == {"| bfloat16", f"| {packed.subject.quantization}"}
    cases = [len({str(figure.case) for figure in result.figures}) for result in (plain, packed)]
    assert len(rows) == sum(cases)
    assert lines[0].count("reads memory at") == lines[0].count("commit ") == 2


def test_other_kernels_than_the_default_are_told() -> None:
    result = report.load(ROOT, "decode-2b")
    subject = result.subject.model_copy(update={"kernels": "aten"})
    assert "on aten kernels" in report._sentence(result.model_copy(update={"subject": subject}))
    assert "kernels" not in report._sentence(result)


@pytest.mark.parametrize("name", HYBRID)
def test_a_result_of_the_hybrid_decoder_names_no_place_of_the_machine(name: str) -> None:
    text = (ROOT / RESULTS / "hybrid" / f"{name}.json").read_text(encoding="utf-8")
    assert platform.node() not in text
    assert "/" not in text.replace("tokens/s", "")
