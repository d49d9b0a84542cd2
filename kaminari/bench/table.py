"""Turns a result into tables of text, for the terminal and for Markdown alike. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kaminari.bench.result import OURS, Figure, Limits, Result
from kaminari.engine.capacity import format_bytes

NOTHING = ""
STEP_TIME = "where a step's time goes"
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


@dataclass(frozen=True, slots=True)
class TextTable:
    """`rows` have as many cells as there are headers."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(result: Result) -> list[TextTable]:
    """The figures, and where the time went if that was asked for."""
    serves = result.suite == "serve"
    made = [_serve_table(result) if serves else _figure_table(result)]
    if result.shares:
        made.append(_step_table(result) if serves else _share_table(result))
    return made


def limit_lines(limits: Limits) -> list[str]:
    """What the machine can do, in words."""
    lines = []
    if limits.read_rate is not None and limits.read_bytes is not None:
        lines.append(
            f"reads memory at {limits.read_rate / 1e9:.1f} GB/s (over {format_bytes(limits.read_bytes)})"
        )
    if limits.multiply_rate is not None:
        rate = limits.multiply_rate / 1e9
        lines.append(f"multiplies {limits.multiply_dtype} at {rate:,.0f} GFLOP/s")
    if limits.file_rate is not None and limits.cached_file_rate is not None:
        lines.append(
            f"reads the checkpoint at {limits.file_rate / 1e9:.1f} GB/s from its disk, "
            f"{limits.cached_file_rate / 1e9:.1f} GB/s from the system's cache"
        )
    return lines


def spell_seconds(seconds: float) -> str:
    """Three digits in the unit that suits them."""
    unit, size = _unit(seconds)
    return f"{_digits(seconds / size)} {unit}"


def _figure_table(result: Result) -> TextTable:
    keys = list(dict.fromkeys(key for figure in result.figures for key in figure.case))
    rates = list(dict.fromkeys(name for figure in result.figures for name in figure.values if _is_rate(name)))
    predicted = any("over_prediction" in figure.values for figure in result.figures)
    versus = any(figure.entrant != OURS for figure in result.figures)
    columns: list[tuple[str, Callable[[Figure], str]]] = [
        *((key, lambda figure, key=key: str(figure.case.get(key, NOTHING))) for key in keys),
        ("entrant", lambda figure: figure.entrant),
        ("median", lambda figure: spell_seconds(figure.seconds.median)),
        ("spread", _spread),
        *(
            (name.replace("_per_second", "/s"), lambda figure, name=name: _value(figure, name))
            for name in rates
        ),
        ("floor", lambda figure: spell_seconds(figure.floor) if figure.floor else NOTHING),
        ("x floor", lambda figure: _times(figure.over_floor)),
    ]
    if predicted:
        columns.append(("x prediction", lambda figure: _times(figure.values.get("over_prediction"))))
    if versus:
        columns.append((f"x {OURS}", lambda figure: _times(result.against_ours(figure))))
    return TextTable(
        _title(result),
        tuple(name for name, _ in columns),
        tuple(tuple(cell(figure) for _, cell in columns) for figure in in_order(result)),
    )


def in_order(result: Result) -> list[Figure]:
    """Figures by case in the order of its numbers, kaminari first."""
    cases = [figure.case for figure in result.figures]
    numbers = {str(case): _sort_key(case, cases.index(case)) for case in cases}
    return sorted(result.figures, key=lambda figure: (numbers[str(figure.case)], figure.entrant != OURS))


def _sort_key(case: object, place: int) -> tuple[float, ...]:
    assert hasattr(case, "values")
    values = list(case.values())
    if all(isinstance(value, int) for value in values):
        return tuple(float(value) for value in reversed(values))
    return (float(place),)


def _serve_table(result: Result) -> TextTable:
    headers = (
        *("load", "entrant", "first token p50", "p95", "between p50", "p95", "whole p50", "p95"),
        *("tokens/s", "of limit", "pictures/s", "client's cores"),
    )
    rows = []
    for figure in result.figures:
        values = figure.values
        limit = values.get("limit_tokens_per_second")
        timings = [
            _seconds(values.get(f"{what}_p{percentile}"))
            for what in ("first", "gap", "whole")
            for percentile in (50, 95)
        ]
        rows.append(
            (
                _load(figure),
                figure.entrant,
                *timings,
                _value(figure, "tokens_per_second"),
                NOTHING if not limit else f"{values['tokens_per_second'] / limit:.0%}",
                _value(figure, "pictures_per_second"),
                f"{values['client_cores']:.2f}",
            )
        )
    return TextTable(_title(result), headers, tuple(rows))


def _load(figure: Figure) -> str:
    if figure.case["loop"] == "open":
        return f"{figure.case['rate']} requests/s"
    clients = figure.case["clients"]
    return "1 client" if clients == 1 else f"{clients} clients"


def _step_table(result: Result) -> TextTable:
    """A row per load: a step's time on the device and on the host, and which parts that is."""
    parts = list(dict.fromkeys(share.component for share in result.shares))
    rows = []
    for figure in result.figures:
        if "rows_per_step" not in figure.values:
            continue
        values = figure.values
        spent = {share.component: share.seconds for share in result.shares if share.case == figure.case}
        device, host = values["device_seconds_per_step"], values["host_seconds_per_step"]
        rows.append(
            (
                *(_load(figure), _value(figure, "rows_per_step"), spell_seconds(device + host)),
                *(spell_seconds(device), spell_seconds(host), spell_seconds(values["host_seconds_per_row"])),
                *(spell_seconds(spent.get(part, 0.0)) for part in parts),
            )
        )
    headers = ("load", "rows", "a step", "device", "host", "host a row", *parts)
    return TextTable(STEP_TIME, headers, tuple(rows))


def _share_table(result: Result) -> TextTable:
    rows = []
    for case in list(dict.fromkeys(str(dict(share.case)) for share in result.shares)):
        own = [share for share in result.shares if str(dict(share.case)) == case]
        whole = sum(share.seconds for share in own)
        words = ", ".join(f"{key} {value}" for key, value in own[0].case.items())
        rows += [
            (words, share.component, spell_seconds(share.seconds), f"{share.seconds / whole:.1%}")
            for share in own
        ]
    return TextTable(STEP_TIME, ("case", "component", "time", "share"), tuple(rows))


def _title(result: Result) -> str:
    subject = result.subject
    return (
        f"{result.suite}: {subject.name}, {subject.precision}, {subject.device}, "
        f"{subject.threads} {'thread' if subject.threads == 1 else 'threads'}"
    )


def _spread(figure: Figure) -> str:
    seconds = figure.seconds
    unit, size = _unit(seconds.median)
    return f"{_digits(seconds.low / size)}-{_digits(seconds.high / size)} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    return next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])


def _value(figure: Figure, name: str) -> str:
    return _digits(figure.values[name]) if name in figure.values else NOTHING


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else spell_seconds(seconds)


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else _digits(ratio)


def _is_rate(name: str) -> bool:
    return name.endswith("_per_second")


def _digits(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(table: TextTable) -> Iterator[str]:
    """The lines of a Markdown table, without its title."""
    yield "| " + " | ".join(table.headers) + " |"
    yield "|" + "---|" * len(table.headers)
    for row in table.rows:
        yield "| " + " | ".join(row) + " |"
