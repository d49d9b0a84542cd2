"""The plots of the report, drawn by matplotlib. Each holds a digest of the results that it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from kaminari.bench.result import Figure, Result

SIZE = (7.0, 3.6)


def draw(kind: str, results: Sequence[Result], path: Path, digest: str) -> None:
    """Draw one of `DRAWERS` as SVG. The same results give the same bytes."""
    with mpl.rc_context({"svg.hashsalt": digest, "svg.fonttype": "none", "font.size": 9.0}):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        axes = canvas.subplots()
        DRAWERS[kind](axes, results)
        axes.spines[["top", "right"]].set_visible(False)
        canvas.savefig(path, format="svg", metadata={"Date": None, "Description": digest})


def ladder(axes: Any, results: Sequence[Result]) -> None:
    """A bar per rung; several results beside one another, each with the rungs that it has."""
    rungs = list(dict.fromkeys(str(figure.case["rung"]) for result in results for figure in result.figures))
    width = 0.8 / len(results)
    for place, result in enumerate(results):
        left = [rungs.index(str(figure.case["rung"])) + place * width for figure in result.figures]
        rates = [figure.values["tokens_per_second"] for figure in result.figures]
        bars = axes.bar(left, rates, width * 0.95, label=_model(result))
        axes.bar_label(bars, fmt="{:,.4g}")
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(rungs))], rungs)
    axes.set_ylabel("tokens per second")
    axes.legend(frameon=False)


def concurrency(axes: Any, results: Sequence[Result]) -> None:
    """Tokens per second of the closed loop, as a part of what one client gets."""
    for result in results:
        for entrant, figures in _by_entrant(result, "clients").items():
            clients = [int(figure.case["clients"]) for figure in figures]
            rates = [figure.values["tokens_per_second"] for figure in figures]
            axes.plot(clients, [rate / rates[0] for rate in rates], "o-", label=_label(result, entrant))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("clients")
    axes.set_ylabel("tokens per second, one client = 1")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def prefill(axes: Any, results: Sequence[Result]) -> None:
    """Seconds over the length, with the floor."""
    for result in results:
        for entrant, figures in _by_entrant(result, "tokens").items():
            tokens = [int(figure.case["tokens"]) for figure in figures]
            (line,) = axes.plot(
                tokens, [figure.seconds.median for figure in figures], "o-", label=_label(result, entrant)
            )
            floors = [figure.floor for figure in figures]
            if entrant == "kaminari" and all(floors):
                axes.plot(tokens, floors, "--", color=line.get_color(), label=f"floor, {_model(result)}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _by_entrant(result: Result, key: str) -> dict[str, list[Figure]]:
    """Figures that have the key, in its order, by entrant."""
    found: dict[str, list[Figure]] = {}
    for figure in sorted(
        (figure for figure in result.figures if key in figure.case), key=lambda figure: figure.case[key]
    ):
        found.setdefault(figure.entrant, []).append(figure)
    return found


def _label(result: Result, entrant: str) -> str:
    return f"{entrant}, {_model(result)}"


def _model(result: Result) -> str:
    return f"{result.subject.name}, {result.subject.dtype}"


DRAWERS: Mapping[str, Callable[[Any, Sequence[Result]], None]] = {
    "ladder": ladder,
    "concurrency": concurrency,
    "prefill": prefill,
}
