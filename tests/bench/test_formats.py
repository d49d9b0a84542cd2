"""The formats that a model has here, measured for a moment each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kaminari.bench.formats import FEWEST_ROUNDS, FEWEST_STEPS, formats_of, measure, missing_formats
from kaminari.cli.main import main
from kaminari.config import EngineSettings, Settings
from kaminari.engine.drawn import Undrawn
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import DecodeRow
from tests.engine.harness import settings


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pack of the person who runs the tests counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def wanted(folder: Path) -> Settings:
    return settings(folder, slots=4, context=512)


def test_packs_count_once_they_are_there(tiny_checkpoint: Path) -> None:
    asked = wanted(tiny_checkpoint)
    assert list(formats_of(asked)) == ["none"]
    assert missing_formats(asked) == ("int8", "int4")
    assert main(["quantize", str(tiny_checkpoint), "--to", "int8"]) == 0
    assert list(formats_of(asked)) == ["none", "int8"]
    assert missing_formats(asked) == ("int4",)


def test_rates_come_for_every_row_count_that_fits(tiny_checkpoint: Path) -> None:
    assert main(["quantize", str(tiny_checkpoint), "--to", "int8"]) == 0
    said: list[str] = []
    for name, choice in formats_of(wanted(tiny_checkpoint)).items():
        found = list(measure(choice, name, 0.01, said.append))
        assert [(rate.format, rate.threads, rate.rows) for rate in found] == [
            (name, 1, rows) for rows in (4, 2, 1)
        ]
        assert all(rate.tokens > 0 and rate.usual for rate in found)
    assert said[0] == "none: loading"
    assert f"int8: round {FEWEST_ROUNDS}" in said


def test_rows_and_threads_take_turns_for_the_whole_time(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many short visits, whose rows stay as short as the first ones', in rounds of opposite order."""
    steps: list[tuple[int, int]] = []
    lengths: list[int] = []
    decode = Runner.decode

    def counted(self: Runner, rows: Sequence[DecodeRow]) -> Undrawn:
        steps.append((len(rows), torch.get_num_threads()))
        lengths.append(max(row.cached for row in rows))
        return decode(self, rows)

    monkeypatch.setattr(Runner, "decode", counted)
    clock = iter(range(100_000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))  # a second a look at the clock
    asked = wanted(tiny_checkpoint)
    asked = asked.model_copy(update={"engine": asked.engine.model_copy(update={"threads": 2})})
    found = {(rate.rows, rate.threads): rate for rate in measure(asked, "none", 1000, lambda _: None)}
    assert [each.usual for each in found.values()] == [number == 2 for _, number in found]
    visits = steps[:: FEWEST_STEPS + 1]
    first = [(rows, threads) for rows in (4, 2, 1) for threads in (1, 2)]
    second = [(rows, threads) for rows in (4, 2, 1) for threads in (2, 1)]
    assert visits[:18] == [*first, *second, *first]
    assert {len(rate.visits) for rate in found.values()} == {len(visits) // 6}
    assert len(visits) // 6 > FEWEST_ROUNDS
    assert max(lengths) - min(lengths) < 6 * (FEWEST_STEPS + 1)


def test_a_context_that_is_too_short_is_said(tiny_checkpoint: Path) -> None:
    asked = wanted(tiny_checkpoint)
    short = EngineSettings(slots=4, context=40, max_choices=4, threads=1)
    with pytest.raises(ValueError, match="a context of 40 tokens is too short"):
        list(measure(asked.model_copy(update={"engine": short}), "none", 0.01, lambda _: None))


def test_doctor_recommends_what_was_measured(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("kaminari.cli.measure.print_measurements.__defaults__", (0.01,))
    line = ["doctor", str(tiny_checkpoint), "--device", "cpu", "--threads", "1", "--slots", "2", "--measure"]
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "Recommended: --quantization none --threads 1 --slots " in printed
    assert f"kaminari quantize {tiny_checkpoint} --to int4 makes its pack" in printed


def test_doctor_says_why_nothing_could_be_measured(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["doctor", str(tiny_checkpoint), "--device", "cpu", "--slots", "1", "--context", "30", "--measure"]
    assert main(line) == 1
    printed = capsys.readouterr()
    assert "none is left out: a context of 30 tokens is too short to measure in" in printed.out
    assert "could not be measured in any format" in printed.err
