"""`kaminari bench` as a person calls it: tables, JSON, wrong lines, interruptions."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kaminari.bench import hf_start, startup
from kaminari.bench.hf import Reference
from kaminari.bench.llama_cpp import PeerError
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import OURS, Result
from kaminari.bench.session import Session
from kaminari.cli.main import main
from kaminari.config import Settings
from kaminari.config.fields import setting_fields

TINY = ["--rounds", "1", "--tokens", "2", "--batches", "1,2", "--contexts", "100", "--threads", "1"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in setting_fields():
        monkeypatch.delenv(field.variable, raising=False)


def failure(capsys: pytest.CaptureFixture[str], *line: str, code: int = 1) -> str:
    """Run a line that must fail, and return its one line."""
    assert main(["bench", *line]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kaminari: ")
    assert printed.err.count("\n") == 1
    return printed.err


def misuse(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *line])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_decode_prints_limits_and_a_table(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", str(tiny_checkpoint), *TINY, "--against", "hf", "--profile"]) == 0
    out = capsys.readouterr().out
    assert "this machine reads memory at " in out
    assert "this machine multiplies " in out
    assert "decode: tied-grouped" in out
    assert "hf, static cache" in out
    assert "where a step's time goes" in out


def test_json_holds_everything_and_no_path(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", str(tiny_checkpoint), *TINY, "--json"]) == 0
    out = capsys.readouterr().out
    result = Result.model_validate_json(out)
    assert result.complete
    assert result.suite == "decode"
    assert result.command.startswith("kaminari bench decode tied-grouped --rounds 1")
    assert {figure.case["batch"] for figure in result.figures} == {1, 2}
    assert result.limits.multiply_dtype == result.subject.dtype
    assert result.subject.threads == 1
    assert str(tiny_checkpoint.parent) not in out


def test_default_cases_that_do_not_fit_the_model_are_left_out(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--prompts", "40,60", "--rounds", "1", "--json", "--threads", "1"]
    assert main(["bench", "prefill", str(tiny_checkpoint), *line]) == 0
    assert len(json.loads(capsys.readouterr().out)["figures"]) == 2


def test_a_context_beyond_the_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "3000 tokens are more than this model's 2048" in failure(
        capsys, "decode", "--contexts", "512,3000"
    )
    assert "more than this model's 2047" in failure(capsys, "prefill", "--prompts", "2048")


def test_settings_that_leave_no_room_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the cases need slots 8, and the setting is 2" in failure(capsys, "decode", "--slots", "2")
    assert "need context 2048, and the setting is 600" in failure(capsys, "decode", "--context", "600")


def test_a_model_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such model folder" in failure(capsys, "decode", str(tmp_path / "none"))


def test_wrong_lines_name_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "invalid choice: 'fly'" in misuse(capsys, "fly")
    assert "must be hf, reading or llama.cpp=DIR, not 'vllm'" in misuse(capsys, "decode", "--against", "vllm")
    assert "must be hf, reading or llama.cpp=DIR" in misuse(capsys, "decode", "--against", "llama.cpp=")
    assert "whole numbers with commas between" in misuse(capsys, "decode", "--batches", "1,x")
    assert "must be at least 1" in misuse(capsys, "decode", "--batches", "0")
    assert "must be at least 1" in misuse(capsys, "decode", "--rounds", "0")
    assert "must be from 0 to 1" in misuse(capsys, "serve", "--pictures-share", "2")
    assert "must be above 0" in misuse(capsys, "serve", "--rate", "nan")
    assert "no such rung: 'packs'" in misuse(capsys, "ladder", "--rungs", "packs")


def test_peers_have_their_suites(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "serve has no peer hf; it has llama.cpp" in failure(capsys, "serve", "--against", "hf", code=2)
    assert "vision has no peer reading; it has hf" in failure(
        capsys, "vision", "--against", "reading", code=2
    )
    assert "--profile attributes the time of decode steps" in failure(capsys, "vision", "--profile", code=2)
    build = str(tmp_path)
    text = failure(capsys, "serve", "--against", f"llama.cpp={build}", code=2)
    assert "with text alone: add --pictures-share 0" in text
    line = ["decode", "--against", f"llama.cpp={build}", "--quick", "--contexts", "100"]
    assert "holds no llama-bench, llama-batched-bench, llama-server" in failure(capsys, *line)


def test_an_interrupted_run_tells_what_it_measured(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Session.steps
    calls: list[int] = []

    def until_a_signal(self: Session, count: int) -> list[float]:
        calls.append(count)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return steps(self, count)

    monkeypatch.setattr(Session, "steps", until_a_signal)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["bench", "decode", str(tiny_checkpoint), *TINY, "--json"]) == 130
    result = Result.model_validate_json(capsys.readouterr().out)
    assert not result.complete
    assert [figure.case["batch"] for figure in result.figures] == [2]
    assert result.notes == ("interrupted: what was measured until then is here",)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_peer_that_fails_midway_leaves_what_was_measured(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise PeerError("it broke")

    monkeypatch.setattr(Reference, "steps", fail)
    assert main(["bench", "decode", str(tiny_checkpoint), *TINY, "--against", "hf"]) == 1
    assert capsys.readouterr().err.endswith("kaminari: it broke\n")
    calls: list[int] = []

    def fail_later(self: Reference, ids: Any, cache: Any, count: int) -> Any:
        calls.append(count)
        if len(calls) > 4:
            raise PeerError("it broke")
        return ids, [1.0] * count

    monkeypatch.setattr(Reference, "steps", fail_later)
    assert main(["bench", "decode", str(tiny_checkpoint), *TINY, "--against", "hf", "--json"]) == 1
    result = Result.model_validate_json(capsys.readouterr().out)
    assert result.notes == ("ended early: it broke",)
    assert OURS in {figure.entrant for figure in result.figures}


def test_a_start_is_timed_to_ready_and_to_an_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starts themselves are played: real ones take seconds each."""
    monkeypatch.setattr(startup, "_own", lambda settings, code: iter([("ready", 2.0), ("first answer", 3.0)]))
    monkeypatch.setattr(startup, "_theirs", lambda plan, settings, code: iter([("ready", 4.0)]))
    assert main(["bench", "startup", "--rounds", "2", "--against", "hf", "--json"]) == 0
    result = Result.model_validate_json(capsys.readouterr().out)
    cases = [(figure.entrant, figure.case["start"], figure.case["until"]) for figure in result.figures]
    assert len(cases) == len(set(cases)) == 6
    assert {figure.seconds.count for figure in result.figures} == {2}
    assert result.limits.cached_file_rate is not None
    first = result.figures[0]
    assert result.limits.file_rate is not None
    assert first.floor == pytest.approx(result.subject.weight_bytes / result.limits.file_rate)


def test_a_first_start_finds_neither_checkpoint_nor_pack(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack.safetensors").write_bytes(b"codes")
    plan: Any = SimpleNamespace(
        folder=tiny_checkpoint,
        pack=SimpleNamespace(folder=tmp_path),
        capacity=SimpleNamespace(weight_bytes=1),
    )
    forgotten: list[str] = []

    def forget(file: Path) -> bool:
        forgotten.append(file.name)
        return True

    def own(settings: Settings, code: str) -> Iterator[tuple[str, float]]:
        forgotten.append("started")
        yield "ready", 1.0

    monkeypatch.setattr(startup, "forget_file", forget)
    monkeypatch.setattr(startup, "_own", own)
    recorder = Recorder(lambda text, done, total: None)
    startup.run(Settings(), plan, Options(rounds=1), recorder)
    # the first is forgotten once more, to find out how fast it is read
    assert forgotten[1:] == [
        *(file.name for file in sorted(tiny_checkpoint.glob("*.safetensors"))),
        *("pack.safetensors", "started", "started"),
    ]


def test_a_server_that_does_not_start_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [os.environ.get("SHELL", "/bin/sh"), "-c", "echo no room; exit 3"]
    monkeypatch.setattr(startup, "own_line", lambda port: line)
    assert "kaminari ended with code 3: no room" in failure(capsys, "startup", "--rounds", "1")


def test_the_peers_process_says_when_it_is_loaded_and_when_it_has_answered(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf_start.main(str(tiny_checkpoint), "cpu", "float32")
    assert capsys.readouterr().out == "ready\nanswered\n"


RunsOn = Callable[[str], Path]


@pytest.mark.parametrize("variant", ["qwen3_5", "minicpm_v"])
def test_every_family_can_be_measured(
    checkpoint: RunsOn, variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint(variant))
    assert main(["bench", "decode", folder, *TINY, "--profile", "--json"]) == 0
    result = Result.model_validate_json(capsys.readouterr().out)
    assert "recurrence" in {share.component for share in result.shares}
