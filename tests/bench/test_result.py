"""Results as data, as JSON and as tables."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kaminari.bench.machine import cpu_name, describe_machine
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import OURS, Figure, Limits, Machine, Result, Share, Spread, Subject
from kaminari.bench.table import limit_lines, markdown, spell_seconds, tables
from kaminari.bench.timing import turns
from kaminari.config.cores import usable_cores
from tests.bench.harness import LIMITS

SUBJECT = Subject(
    name="tiny",
    family="qwen3_vl",
    device="cpu",
    dtype="float32",
    vision_dtype="float32",
    quantization="none",
    threads=2,
    weight_bytes=100,
)
MACHINE = Machine(
    cpu="A CPU",
    cores=2,
    memory=1 << 30,
    accelerator=None,
    system="Linux x86_64",
    python="3.11",
    torch="2.13",
    transformers="5.24",
)


def result_of(*figures: Figure, suite: str = "decode", shares: tuple[Share, ...] = ()) -> Result:
    return Result(
        suite=suite,
        command="kaminari bench decode",
        commit=None,
        complete=True,
        machine=MACHINE,
        subject=SUBJECT,
        limits=Limits(read_rate=2e10, read_bytes=1 << 20, multiply_rate=3e11, multiply_dtype="float32"),
        figures=figures,
        shares=shares,
    )


def figure(entrant: str, batch: int, *samples: float, floor: float | None = None) -> Figure:
    return Figure(entrant=entrant, case={"batch": batch}, seconds=Spread.of(samples), floor=floor)


def test_a_spread_is_a_median_with_its_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0, count=3)


def test_a_result_survives_json() -> None:
    whole = result_of(figure(OURS, 1, 0.5, floor=0.25), shares=(Share(case={}, component="x", seconds=1.0),))
    assert Result.model_validate_json(whole.model_dump_json()) == whole
    with pytest.raises(ValidationError):
        Result.model_validate({**whole.model_dump(), "surprise": 1})
    with pytest.raises(ValidationError):
        Result.model_validate({**whole.model_dump(), "format": 2})


def test_figures_are_held_to_floor_and_to_ours() -> None:
    ours, theirs, stranger = figure(OURS, 1, 2.0, floor=0.5), figure("hf", 1, 3.0), figure("hf", 2, 3.0)
    result = result_of(ours, theirs, stranger)
    assert ours.over_floor == 4.0
    assert theirs.over_floor is None
    assert result.against_ours(theirs) == 1.5
    assert result.against_ours(stranger) is None


def test_a_figure_that_beats_its_limit_is_told() -> None:
    assert figure(OURS, 1, 0.4, floor=0.5).beats_its_limit
    assert not figure(OURS, 1, 0.6, floor=0.5).beats_its_limit
    assert not figure(OURS, 1, 0.6).beats_its_limit
    for reached in (90.0, 110.0):
        values = {"tokens_per_second": reached, "limit_tokens_per_second": 100.0}
        load = Figure(entrant=OURS, case={"clients": 1}, seconds=Spread.of([1.0]), values=values)
        assert load.beats_its_limit == (reached > 100)


def test_the_table_says_all_of_it_in_the_order_of_the_cases() -> None:
    result = result_of(
        figure("hf", 8, 0.3), figure(OURS, 8, 0.2, 0.1, 0.3), figure(OURS, 1, 0.05, floor=0.04)
    )
    (table,) = tables(result)
    assert table.title == "decode: tiny, float32, cpu, 2 threads"
    assert table.headers == ("batch", "entrant", "median", "spread", "floor", "x floor", "x kaminari")
    assert table.rows == (
        ("1", OURS, "50.0 ms", "50.0-50.0 ms", "40.0 ms", "1.25", "1.00"),
        ("8", OURS, "200 ms", "100-300 ms", "", "", "1.00"),
        ("8", "hf", "300 ms", "300-300 ms", "", "", "1.50"),
    )
    assert list(markdown(table))[:3] == [
        "| batch | entrant | median | spread | floor | x floor | x kaminari |",
        "|---|---|---|---|---|---|---|",
        "| 1 | kaminari | 50.0 ms | 50.0-50.0 ms | 40.0 ms | 1.25 | 1.00 |",
    ]


def test_shares_have_a_table_of_their_own() -> None:
    shares = tuple(Share(case={"batch": 1}, component=name, seconds=1e-3) for name in ("norms", "host"))
    _, table = tables(result_of(figure(OURS, 1, 1.0), shares=shares))
    assert table.rows == (("batch 1", "norms", "1.00 ms", "50.0%"), ("batch 1", "host", "1.00 ms", "50.0%"))


def test_a_load_that_was_profiled_has_a_row_of_its_steps() -> None:
    loads = [{"loop": "closed", "clients": 2}, {"loop": "open", "rate": 3.5}]
    profiled = {
        "rows_per_step": 1.5,
        "device_seconds_per_step": 2e-3,
        "host_seconds_per_step": 1e-3,
        "host_seconds_per_row": 1e-3 / 1.5,
    }
    figures = [
        Figure(
            entrant=OURS,
            case=case,
            seconds=Spread.of([1.0]),
            values={"tokens_per_second": 1.0, "pictures_per_second": 0.0, "client_cores": 0.1, **more},
        )
        for case, more in zip(loads, (profiled, {}), strict=True)
    ]
    shares = tuple(
        Share(case=loads[0], component=name, seconds=seconds)
        for name, seconds in (("forward", 2e-3), ("plan", 1e-3))
    )
    _, table = tables(result_of(*figures, suite="serve", shares=shares))
    assert table.headers == ("load", "rows", "a step", "device", "host", "host a row", "forward", "plan")
    assert table.rows == (
        ("2 clients", "1.50", "3.00 ms", "2.00 ms", "1.00 ms", "667 µs", "2.00 ms", "1.00 ms"),
    )


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [
        (12.345, "12.3 s"),
        (1.0, "1.00 s"),
        (0.5, "500 ms"),
        (2e-5, "20.0 µs"),
        (0.0, "0.00 µs"),
        (2345.0, "2,345 s"),
    ],
)
def test_seconds_are_spelled_in_the_unit_that_suits_them(seconds: float, spelled: str) -> None:
    assert spell_seconds(seconds) == spelled


def test_limits_are_told_in_words() -> None:
    assert limit_lines(Limits()) == []
    assert limit_lines(result_of().limits) == [
        "reads memory at 20.0 GB/s (over 1.0 MiB)",
        "multiplies float32 at 300 GFLOP/s",
    ]


def test_samples_of_a_case_come_together() -> None:
    told: list[tuple[str, int, int]] = []
    recorder = Recorder(lambda *news: told.append(news))
    recorder.expect(2)
    recorder.row(OURS, {"batch": 2}, floor=lambda limits: 0.1, amounts={"tokens": 2}).samples.append(1.0)
    recorder.done("one")
    recorder.row(OURS, {"batch": 2}).samples.append(3.0)
    recorder.row("hf", {"batch": 2})
    (only,) = recorder.figures(LIMITS)
    assert only.seconds.median == 2.0
    assert only.floor == 0.1
    assert only.values == {"tokens_per_second": 1.0}
    assert told == [("one", 1, 2)]


def test_everybody_has_a_turn_and_another_one_begins() -> None:
    assert list(turns(["a", "b", "c"], 2)) == ["a", "b", "c", "b", "c", "a"]
    assert list(turns([], 2)) == []


def test_the_machine_is_described_without_a_name_of_its_own() -> None:
    machine = describe_machine()
    assert machine.cpu == cpu_name()
    assert 1 <= usable_cores(logical=True) == machine.cores
    import platform

    assert platform.node() not in machine.model_dump_json()
