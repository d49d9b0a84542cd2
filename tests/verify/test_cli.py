"""`kaminari verify` as a person calls it: tables, JSON, exit codes, saved traces, wrong lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from kaminari.cli.main import main
from kaminari.model.family import LoadOptions
from kaminari.model.qwen3_vl.family import Qwen3VLFamily
from kaminari.verify.trace import save_trace
from tests.verify.harness import Traced

TraceOf = Callable[[str], Traced]


@pytest.fixture
def saved(trace_of: TraceOf, tmp_path: Path) -> tuple[str, str]:
    """A checkpoint folder and its trace's file."""
    traced = trace_of("tied-grouped")
    path = tmp_path / "trace.safetensors"
    save_trace(traced.trace, path)
    return str(traced.folder), str(path)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Qwen3-VL model is loaded with the exact GELU in one vision layer."""
    whole = Qwen3VLFamily.load

    def load(self: Qwen3VLFamily, folder: Path, options: LoadOptions) -> Any:
        model: Any = whole(self, folder, options)
        model.network.vision.blocks[1].mlp.act_fn = nn.GELU()
        return model

    monkeypatch.setattr(Qwen3VLFamily, "load", load)


def test_a_persons_own_prompt_saved_and_used_again(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = Path(__file__).parents[1] / "cases" / "files" / "shape_red_circle.png"
    path = tmp_path / "trace.safetensors"
    line = ["verify", str(tiny_checkpoint), "--image", str(picture), "--tokens", "3", "--save", str(path)]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "greedy, yours: the same 3 tokens" in out
    assert "vision layer 2" in out
    assert "isolated" in out
    assert "through" in out
    assert main(["verify", str(tiny_checkpoint), "--against", str(path), "--mode", "isolated"]) == 0
    out = capsys.readouterr().out
    assert "greedy, yours: the same 3 tokens" in out
    assert "through" not in out


@pytest.mark.usefixtures("faulty")
def test_a_fault_is_named_and_fails(saved: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = saved
    assert main(["verify", folder, "--against", path]) == 1
    assert "first out of tolerance: vision layer 1 (isolated" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("faulty")
def test_json_names_the_fault(saved: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = saved
    assert main(["verify", folder, "--against", path, "--json", "--mode", "isolated"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert report["passed"] is False
    assert report["first_fault"]["stage"] == "vision layer 1"
    assert report["first_fault"]["where"] == "output"
    assert report["reference"]["dtype"] == "float32"
    (layer,) = {(stage["stage"], stage["fault"]) for stage in report["stages"] if stage["fault"] == "output"}
    assert layer == ("vision layer 1", "output")
    assert [answer["tokens"] for answer in report["greedy"]] == [4, 4, 4]


def test_bfloat16_is_held_to_its_own_bounds(
    saved: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = saved
    main(["verify", folder, "--against", path, "--json", "--dtype", "bfloat16"])
    report = json.loads(capsys.readouterr().out)
    assert report["first_fault"] is None
    assert max(stage["output"] for stage in report["stages"] if stage["mode"] == "isolated") > 1e-3


def test_the_trace_of_another_checkpoint_is_refused(
    saved: tuple[str, str], checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = saved
    assert main(["verify", str(checkpoint("untied-wide")), "--against", path]) == 1
    assert "is the trace of another checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "piece"),
    [
        (["--against", "x", "--save", "y"], 2, "leave out"),
        (["--against", "x", "--ask", "y"], 2, "leave out"),
        (["--against", "/nowhere/at/all"], 1, "cannot read the trace"),
        (["--image", "/nowhere/at/all"], 1, "cannot read the picture"),
        (["--save", "/nowhere/at/all"], 1, "its folder does not exist"),
        (["--image", __file__], 1, "the prompt cannot be made"),
        (["--device", "gpu"], 2, "--device"),
        (["/nowhere/at/all"], 1, "no such model folder"),
    ],
)
def test_what_cannot_be_verified_is_said_in_short(
    arguments: list[str], code: int, piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert piece in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--tokens", "x"], ["--mode", "sideways"]])
def test_a_wrong_line_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["verify", *arguments])
    assert leaving.value.code == 2
    assert arguments[0] in capsys.readouterr().err
