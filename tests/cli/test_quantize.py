"""`kaminari quantize`: a pack in its place and a word about it, or one line and nothing left behind."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from kaminari import Conversation, Engine, SamplingParams, collect
from kaminari.cli import chat, serve
from kaminari.cli.main import main
from kaminari.config import ConfigError, load_settings
from kaminari.config.fields import setting_fields
from kaminari.engine.loading import plan_model
from kaminari.model.family import CheckpointError
from kaminari.model.packs.format import PACK_FILE
from tests.model.packs.packs import header_of


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for field in setting_fields():
        monkeypatch.delenv(field.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache" / "kaminari" / "packs"


def settings(**values: str) -> dict[str, str]:
    return {"model.device": "cpu", "model.dtype": "float32", "engine.slots": "1"} | {
        f"model.{name}": value for name, value in values.items()
    }


def failure(capsys: pytest.CaptureFixture[str], *line: str, code: int = 1) -> str:
    assert main(["quantize", *line]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kaminari: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_demo_answers_from_its_standard_pack(
    capsys: pytest.CaptureFixture[str], cache: Path, tmp_path: Path
) -> None:
    asked = settings(quantization="int4")
    with pytest.raises(CheckpointError) as missing:
        Engine.load(load_settings(asked, environ={}))
    assert "there is no int4 pack of demo in" in str(missing.value)
    assert str(missing.value).endswith("make it with: kaminari quantize demo --to int4")
    assert main(["quantize", "demo", "--to", "int4", "--group-size", "32"]) == 0
    printed = capsys.readouterr().out
    assert f"int4-g32 pack of kaminari-demo in {cache / 'kaminari-demo' / 'int4'}" in printed
    assert "28 weights of 5.2 MiB became 1.6 MiB; 87 tensors keep their place" in printed
    assert printed.splitlines()[-1] == "Serve it with: kaminari serve demo --quantization int4"
    with Engine.load(load_settings(asked, environ={})) as engine:
        assert engine.info.quantization == "int4-g32"
        assert "dtype float32, quantized int4-g32, " in serve.ready_text(engine.info, "http://x")
        plain = Engine.load(load_settings(settings(), environ={}))
        with plain:
            assert engine.info.weight_bytes < plain.info.weight_bytes
            assert "quantized" not in serve.ready_text(plain.info, "http://x")
        prompt = engine.prepare(Conversation.ask("What is the capital of France?"))
        answer = collect(engine.submit(prompt, SamplingParams(temperature=0, max_tokens=20)))
        assert "Paris" in answer.text


def test_a_pack_in_its_own_place(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "pack"
    assert main(["quantize", str(tiny_checkpoint), "--to", "int8", "--head", "-o", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == (
        f"Serve it with: kaminari serve {tiny_checkpoint} --quantization {folder}"
    )
    assert header_of(folder)["head"] is True
    report = json.loads((folder / "report.json").read_text())
    assert report["pack"] == "int8+head-int8"
    assert report["quality"] is None
    assert set(report["weight_errors"]) == set(header_of(folder)["targets"])
    asked = settings(source=str(tiny_checkpoint), quantization=str(folder))
    with Engine.load(load_settings(asked, environ={})) as engine:
        assert engine.info.quantization == "int8+head-int8"
    assert main(["doctor", str(tiny_checkpoint), "--device", "cpu", "--quantization", str(folder)]) == 0
    assert f"int8+head-int8, from {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("head", [[], ["--head"]], ids=["projections", "head too"])
def test_doctor_says_what_a_pack_saves(
    head: list[str], capsys: pytest.CaptureFixture[str], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of a tied table that the pack holds nothing is left in the model's own dtype."""
    source, folder = checkpoint("tied-grouped"), tmp_path / "pack"
    assert main(["quantize", str(source), "--to", "int4", *head, "-o", str(folder)]) == 0
    capsys.readouterr()
    line = ["--device", "cpu", "--dtype", "bfloat16", "--slots", "1", "--context", "64"]
    assert main(["doctor", str(source), *line, "--quantization", str(folder)]) == 0
    printed = capsys.readouterr().out
    values = sum(tensor.numel() for tensor in load_file(source / "model.safetensors").values())
    taken = sum(math.prod(target["shape"]) for target in header_of(folder)["targets"].values())
    held = sum(tensor.nbytes for tensor in load_file(folder / PACK_FILE).values())
    asked = settings(source=str(source), quantization=str(folder), dtype="bfloat16")
    plan = plan_model(load_settings(asked | {"engine.context": "64"}, environ={}))
    rest = plan.capacity.cache_bytes + plan.capacity.table_bytes
    share = (2 * (values - taken) + held + rest) / (2 * values + rest)
    assert f"the pack takes {share:.3f} of that" in printed
    assert plan.capacity.weight_bytes == 2 * (values - taken) + held


def test_a_report_on_ones_own_prompt(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    line = [str(tiny_checkpoint), "--to", "int8", "-o", str(tmp_path / "pack"), "--json"]
    more = ["--report", "--ask", "Say it.", "--tokens", "5", "--device", "cpu", "--dtype", "float32"]
    assert main(["quantize", *line, *more]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    report = json.loads(printed.out)
    assert report == json.loads((tmp_path / "pack" / "report.json").read_text())
    (prompt,) = report["quality"]["prompts"]
    assert prompt["prompt"] == "yours"
    assert prompt["tokens"] == 5
    errors = report["quality"]["stage_errors"]
    assert errors["token embedding"] == 0
    assert 0 < errors["text layer 0"] < 0.05
    assert 0 < errors["logits"] < 0.1


def test_the_built_in_report_covers_the_tower(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    line = [str(tiny_checkpoint), "--to", "int4", "-o", str(tmp_path / "pack"), "--device", "cpu"]
    assert main(["quantize", *line, "--report", "--tokens", "2", "--dtype", "float32"]) == 0
    errors = json.loads((tmp_path / "pack" / "report.json").read_text())["quality"]["stage_errors"]
    assert errors["vision rows"] == 0
    assert list(errors)[-1] == "logits"
    assert "two pictures" in capsys.readouterr().out


def test_a_report_on_pages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "white").save(tmp_path / "page.png")
    pages = tmp_path / "pages.jsonl"
    lines = [
        {"image": "page.png", "text": "Tea 2.50", "kind": "receipt"},
        {"image": "page.png", "text": "Tea", "question": "What is it?"},
    ]
    pages.write_text("\n".join(map(json.dumps, lines)))
    line = ["demo", "--to", "int8", "--head", "-o", str(tmp_path / "pack"), "--device", "cpu"]
    more = ["--dtype", "float32", "--report", "--tokens", "2", "--pages", str(pages)]
    assert main(["quantize", *line, *more]) == 0
    printed = capsys.readouterr().out
    assert "wrong, pack" in printed
    report = json.loads((tmp_path / "pack" / "report.json").read_text())
    assert [each["prompt"] for each in report["quality"]["prompts"]] == ["receipt", "page"]
    receipt, page = report["pages"]
    assert (receipt["kind"], receipt["pages"], receipt["characters"]) == ("receipt", 1, 8)
    assert (page["kind"], page["pages"], page["characters"]) == ("page", 1, 3)
    for side in ("own", "pack"):
        assert receipt[side]["character_error_rate"] > 0
        assert receipt[side]["exact"] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read"),
        ("\n", "names no pages"),
        ("[1]", "line 1: Input should be an object"),
        ('{"image": "x.png"}', "line 1: text: Field required"),
        ('{"image": "x.png", "text": "", "kind": "a"}', "line 1: text: String should have at least 1"),
        ('{"image": "x.png", "text": "a", "quetsion": "b"}', "line 1: quetsion: Extra inputs"),
        ('{"image": "x.png", "text": "a"}', "line 1: cannot read x.png: No such file"),
    ],
)
def test_pages_that_cannot_be_read_are_named_before_anything_is_made(
    text: str | None, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path
) -> None:
    pages = tmp_path / "pages.jsonl"
    if text is not None:
        pages.write_text(text)
    assert words in failure(capsys, "demo", "--to", "int8", "--report", "--pages", str(pages))
    assert not cache.exists()


def test_gptq_reads_before_it_rounds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On what it was calibrated with it is closer than the method that looks at weights alone."""
    errors = {}
    for method in ("fit", "gptq"):
        line = ["demo", "--to", "int4", "--method", method, "-o", str(tmp_path / method), "--device", "cpu"]
        more = ["--dtype", "float32", "--kernels", "aten", "--report", "--tokens", "8", "--json"]
        assert main(["quantize", *line, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["method"] == method
        errors[method] = report["quality"]["stage_errors"]["final norm"]
    assert errors["gptq"] < 0.6 * errors["fit"]


def test_calibration_pages_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "white").save(tmp_path / "page.png")
    (tmp_path / "pages.jsonl").write_text('{"image": "page.png", "text": "Tea 2.50"}')
    line = ["demo", "--to", "int4", "--method", "gptq", "-o", str(tmp_path / "pack"), "--device", "cpu"]
    assert main(["quantize", *line, "--calibrate", str(tmp_path / "pages.jsonl")]) == 0
    assert header_of(tmp_path / "pack")["method"] == "gptq"
    capsys.readouterr()
    assert "cannot read" in failure(capsys, *line, "--calibrate", str(tmp_path / "no.jsonl"))
    (tmp_path / "page.png").write_bytes(b"no picture")
    assert "the model cannot be calibrated: " in failure(
        capsys, *line, "--calibrate", str(tmp_path / "pages.jsonl")
    )


def test_a_page_that_is_no_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"no picture")
    (tmp_path / "pages.jsonl").write_text('\n{"image": "x.png", "text": "a"}')
    line = ["demo", "--to", "int8", "-o", str(tmp_path / "pack"), "--report", "--ask", "x", "--tokens", "1"]
    printed = failure(capsys, *line, "--pages", str(tmp_path / "pages.jsonl"))
    assert f"{tmp_path / 'pages.jsonl'}, line 2: " in printed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--to", "int8", "--group-size", "32"], "--group-size belongs to int4"),
        (["--to", "int8", "--method", "hqq"], "--method belongs to int4"),
        (["--to", "int4", "--calibrate", "x.jsonl"], "--calibrate belongs to --method gptq"),
        (["--to", "int4", "--ask", "x"], "give --report too"),
        (["--to", "int4", "--image", "x.png"], "give --report too"),
        (["--to", "int4", "--pages", "x.jsonl"], "give --report too"),
    ],
)
def test_flags_that_do_not_go_together(
    line: list[str], words: str, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    assert words in failure(capsys, *line, code=2)
    assert not cache.exists()


@pytest.mark.parametrize("line", [[], ["--to", "int3"], ["--to", "int4", "--group-size", "48"]])
def test_wrong_words_are_usage(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["quantize", *line])
    assert caught.value.code == 2


def test_settings_that_it_has_no_use_for_are_no_flags() -> None:
    with pytest.raises(ConfigError, match="--quantization"):
        main_without_catching(["--to", "int4", "--quantization", "int4"])


def main_without_catching(line: list[str]) -> None:
    from kaminari.cli import quantize

    quantize.run(line)


def test_what_cannot_be_made(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert "no such model folder" in failure(capsys, "./nowhere", "--to", "int4")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    line = (str(tiny_checkpoint), "--to", "int4", "-o", str(full))
    assert "holds other things than a pack" in failure(capsys, *line)
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = (str(tiny_checkpoint), "--to", "int4", "-o", str(blocked / "pack"))
    assert "cannot write" in failure(capsys, *line)
    line = (str(tiny_checkpoint), "--to", "int8", "--report", "--image", str(tmp_path / "no.png"))
    assert "cannot read the picture" in failure(capsys, *line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_run_that_is_told_to_end_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Killed while its first rows are written, in a process of its own."""
    code = (
        # whoever runs the tests in the background has SIGINT ignored, and passes that on
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from kaminari.cli.main import main; from kaminari.model.packs.tensor_file import TensorFile; "
        "TensorFile.write_rows = lambda *rest: os.kill(os.getpid(), int(sys.argv[1])); "
        "sys.exit(main(['quantize', 'demo', '--to', 'int8', '-o', sys.argv[2]]))"
    )
    line = [sys.executable, "-c", code, str(int(number)), str(tmp_path / "new" / "pack")]
    assert subprocess.run(line, capture_output=True, text=True).returncode == 130
    assert list((tmp_path / "new").iterdir()) == []


def test_a_standard_pack_of_the_other_format_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_checkpoint), "--to", "int8"]) == 0
    place = cache / tiny_checkpoint.name
    shutil.move(place / "int8", place / "int4")
    asked = settings(source=str(tiny_checkpoint), quantization="int4")
    with pytest.raises(CheckpointError, match="holds an int8 pack; make the other with: kaminari quantize"):
        Engine.load(load_settings(asked, environ={}))
    asked = settings(source=str(tiny_checkpoint), quantization=str(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match=r"--to int4 -o .*nothing"):
        Engine.load(load_settings(asked, environ={}))


def test_verify_wants_the_checkpoints_own_weights(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny_checkpoint), "--quantization", "int4"]) == 2
    assert "use --quantization none" in capsys.readouterr().err


def test_chat_says_what_it_runs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert chat.precision("float32", "none") == "float32"
    assert chat.precision("bfloat16", "int8") == "bfloat16, quantized int8"
