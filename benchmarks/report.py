"""Write the tables and plots of the README and of the docs from the results that are committed.

    python -m benchmarks.report            # write them
    python -m benchmarks.report --check    # change nothing; exit code 1 where something would change

A page holds what is written between two comments, of which the first says what stands there:

    <!-- report: compare decode-2b decode-2b-int4 -->  a row per case, with all entrants side by side
    <!-- report: table serve-demo -->  every figure, with limits, machine and command
    <!-- report: plot concurrency serve-demo serve-2b -->
    <!-- report: hybrid sides minicpm-v-tiers -->  what `benchmarks.hybrid` wrote
    <!-- /report -->

Names are those of files in benchmarks/results/ (for `hybrid` in its folder of that name), without `.json`.
Writing plots needs the packages of benchmarks/requirements.txt; checking them does not: a plot carries a
digest of what it was drawn from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hybrid_report
from kaminari.bench.result import OURS, Figure, Result
from kaminari.bench.table import in_order, limit_lines, markdown, spell_seconds, tables

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/benchmarks.md", "docs/hybrid.md")
RESULTS = Path("benchmarks/results")
PLOTS = Path("benchmarks/plots")
PLOT_KINDS = {
    "ladder": "tokens per second of each rung of the ladder",
    "concurrency": "tokens per second over the number of clients",
    "prefill": "seconds of prefill over the length of the prompt",
}
_BLOCK = re.compile(r"(<!-- report: ([^>]+?) -->\n)(.*?)(<!-- /report -->)", re.DOTALL)


class ReportError(Exception):
    """A page or a result that no report can be made of; the message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and say what would change")
    check = parser.parse_args(argv).check
    try:
        stale = stale_pages(ROOT) + stale_plots(ROOT)
        if not check:
            write(ROOT)
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    for path in stale:
        print(f"{path} {'does not match the results' if check else 'written'}")
    return int(check and bool(stale))


def write(root: Path) -> None:
    """Bring every page and plot up to date. Raises `ReportError`."""
    for page in PAGES:
        path = root / page
        path.write_text(rendered(root, page), encoding="utf-8")
    stale = stale_plots(root)
    for kind, names in wanted_plots(root):
        path = plot_path(kind, names)
        if path in stale:
            _draw(root, kind, names)


def stale_pages(root: Path) -> list[Path]:
    """Pages whose blocks are not what the results say. Raises `ReportError`."""
    return [Path(page) for page in PAGES if (root / page).read_text("utf-8") != rendered(root, page)]


def stale_plots(root: Path) -> list[Path]:
    """Plots that are missing, or that were drawn from other results. Raises `ReportError`."""
    stale = []
    for kind, names in wanted_plots(root):
        path = plot_path(kind, names)
        drawn = (root / path).read_text("utf-8") if (root / path).is_file() else ""
        if digest([load(root, name) for name in names]) not in drawn:
            stale.append(path)
    return stale


def rendered(root: Path, page: str) -> str:
    """A page with its blocks written anew. Raises `ReportError`."""
    text = (root / page).read_text(encoding="utf-8")
    if text.count("<!-- report:") != len(_BLOCK.findall(text)):
        raise ReportError(f"{page} holds a report without its end")

    def block(found: re.Match[str]) -> str:
        return found[1] + "\n" + _block(root, page, found[2].split()) + "\n\n" + found[4]

    return _BLOCK.sub(block, text)


def wanted_plots(root: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The plots that the pages show, each once."""
    words = [found[1].split() for page in PAGES for found in _BLOCK.findall((root / page).read_text("utf-8"))]
    plots = [(each[1], tuple(each[2:])) for each in words if each[0] == "plot" and len(each) > 2]
    return list(dict.fromkeys(plots))


def plot_path(kind: str, names: Sequence[str]) -> Path:
    return PLOTS / f"{kind}-{'-'.join(names)}.svg"


def load(root: Path, name: str) -> Result:
    """Read a result. Raises `ReportError`."""
    path = root / RESULTS / f"{name}.json"
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"no result {name} in {RESULTS}") from error
    except ValueError as error:
        raise ReportError(f"{RESULTS / path.name} is no result: {str(error).splitlines()[0]}") from error


def digest(results: Sequence[Result]) -> str:
    """What a plot was drawn from, in 32 letters."""
    state = hashlib.blake2b(digest_size=16)
    for result in results:
        state.update(result.model_dump_json().encode())
    return state.hexdigest()


def _block(root: Path, page: str, words: Sequence[str]) -> str:
    verb, *names = words
    if verb == "plot" and len(names) > 1 and names[0] in PLOT_KINDS:
        target = os.path.relpath(plot_path(names[0], names[1:]), Path(page).parent)
        for name in names[1:]:
            load(root, name)
        return f"![{PLOT_KINDS[names[0]]}]({Path(target).as_posix()})"
    if verb == "table" and len(names) == 1:
        return "\n".join(_table(load(root, names[0])))
    if verb == "compare" and names:
        return "\n".join(_compare([load(root, name) for name in names]))
    if verb == "hybrid" and len(names) > 1 and names[0] in hybrid_report.TABLES:
        found = {name: _load_hybrid(root, name) for name in names[1:]}
        try:
            return "\n".join(hybrid_report.TABLES[names[0]](found))
        except (LookupError, TypeError) as error:
            raise ReportError(f"{', '.join(found)} cannot be made {names[0]} of: no {error}") from error
    raise ReportError(f"{page} asks for {' '.join(words)!r}, which is no report")


def _load_hybrid(root: Path, name: str) -> Mapping[str, Any]:
    path = root / RESULTS / "hybrid" / f"{name}.json"
    try:
        found: Mapping[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ReportError(f"no result {name} in {RESULTS / 'hybrid'}") from error
    except ValueError as error:
        raise ReportError(f"{RESULTS / 'hybrid' / path.name} is no result: {error}") from error
    return found


def _table(result: Result) -> list[str]:
    """Every figure, and all that must be known to judge it."""
    lines = [f"{_sentence(result)} `{result.command}`"]
    for table in tables(result):
        lines += ["", *markdown(table)]
    lines += [f"\n{note[0].upper()}{note[1:]}." for note in result.notes]
    return lines


def _compare(results: Sequence[Result]) -> list[str]:
    """A row per case, of one run or of several. A peer's cell says how many times kaminari's time it took."""
    figures = [figure for result in results for figure in result.figures]
    entrants = sorted({figure.entrant for figure in figures}, key=lambda name: (name != OURS, name))
    keys = list(dict.fromkeys(key for figure in figures for key in figure.case))
    several = ["weights"] if len(results) > 1 else []
    lines = [
        *([_sentence(results[0])] if not several else _sentences(results)),
        "",
        "| " + " | ".join([*several, *keys, *entrants, "floor", f"{OURS} / floor"]) + " |",
        "|" + "---|" * (len(several) + len(keys) + len(entrants) + 2),
    ]
    for result in results:
        rows: dict[str, dict[str, Figure]] = {}
        for figure in in_order(result):
            rows.setdefault(str(dict(figure.case)), {})[figure.entrant] = figure
        for row in rows.values():
            first = next(iter(row.values()))
            ours = row.get(OURS, first)
            cells = [result.subject.weights] if several else []
            cells += [str(first.case.get(key, "")) for key in keys]
            cells += [_cell(result, row.get(name)) for name in entrants]
            cells.append("" if not ours.floor else spell_seconds(ours.floor))
            cells.append("" if ours.over_floor is None else f"{ours.over_floor:.2f}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _sentences(results: Sequence[Result]) -> list[str]:
    """What several runs have in common, and what each of them found the machine to give."""
    if len({(each.suite, each.subject.name, each.subject.threads) for each in results}) > 1:
        raise ReportError("runs of different suites, models or threads do not stand in one table")
    limits = [
        f"{result.subject.weights}: it {'; '.join(limit_lines(result.limits))}; {_commit(result)}"
        for result in results
    ]
    return [f"{_where(results[0])}. {'. '.join(limits)}."]


def _cell(result: Result, figure: Figure | None) -> str:
    if figure is None:
        return ""
    ratio = result.against_ours(figure)
    median = spell_seconds(figure.seconds.median)
    return median if figure.entrant == OURS or ratio is None else f"{median} ({ratio:.2f}x)"


def _sentence(result: Result) -> str:
    """Where, with what and of what, in one line."""
    limits = "; ".join(limit_lines(result.limits))
    whole = "" if result.complete else " Not complete."
    kernels = "" if result.subject.kernels is None else f" on {result.subject.kernels} kernels"
    return f"{_where(result, result.subject.precision + kernels)}; it {limits}; {_commit(result)}.{whole}"


def _where(result: Result, precision: str = "") -> str:
    machine, subject = result.machine, result.subject
    device = machine.accelerator if subject.device == "cuda" else machine.cpu
    return (
        f"{subject.name}{precision and ', '}{precision}, on {device} ({machine.cores} cores, "
        f"{subject.threads} {'thread' if subject.threads == 1 else 'threads'}), "
        f"torch {machine.torch}, transformers {machine.transformers}"
    )


def _commit(result: Result) -> str:
    return "an unknown commit" if result.commit is None else f"commit {result.commit[:9]}"


def _draw(root: Path, kind: str, names: Sequence[str]) -> None:
    try:
        from benchmarks import plots
    except ImportError as error:
        raise ReportError(
            "plots need matplotlib: pip install --requirement benchmarks/requirements.txt"
        ) from error
    results = [load(root, name) for name in names]
    (root / PLOTS).mkdir(exist_ok=True)
    plots.draw(kind, results, root / plot_path(kind, names), digest(results))


if __name__ == "__main__":
    sys.exit(main())
