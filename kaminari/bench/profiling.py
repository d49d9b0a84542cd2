"""Where a decode step's time goes, by component: the device's parts, and the host's remainder.

On a CPU the step is the one that the engine runs, captured where it can be, with a stamp at every border of a
component. Every part is of the same steps as their whole, so the host has what is left: planning, preparing,
and Python's way into the captured step and back. On CUDA, where a captured step is one launch, the steps run
uncaptured under torch's profiler, a component has the kernels that it launched, and the host has what they
leave of an ordinary step.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import WARM_STEPS
from kaminari.bench.ranges import named_ranges
from kaminari.bench.recorder import Case
from kaminari.bench.result import Share
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.stamps import Stamps
from kaminari.model.kernels.native.build import native_kernels

MARK = "kaminari: "
HOST, SAMPLING = "host", "sampling"
SAMPLING_PARTS = ("sample", "collect")
"""The parts of the step clock that are the device's, behind the model."""
STEPS = 16
PROFILED_STEPS = 3


def profile_decode(bench: Bench, batch: int, context: int) -> None:
    """Attribute a step of `batch` rows at about `context` tokens, and keep the shares."""
    # the first token is the prompt's
    tokens = 1 + WARM_STEPS + 1 + PROFILED_STEPS + STEPS
    attributed = _on_cpu if bench.subject.device.type == "cpu" else _on_cuda
    parts, whole = attributed(bench, batch, context, context - tokens)
    bench.recorder.shares += shares({"batch": batch, "context": context}, parts, whole)


def shares(case: Case, parts: Mapping[str, float], whole: float) -> list[Share]:
    """Components by size, the host's remainder last."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    host = whole - sum(parts.values())
    return [Share(case=case, component=name, seconds=part) for name, part in (*ordered, (HOST, host))]


def _on_cpu(bench: Bench, batch: int, context: int, length: int) -> tuple[dict[str, float], float]:
    """Seconds of each component of a step, and of the whole."""
    loaded = bench.subject.loaded
    stamps = Stamps(native_kernels().library)
    steps = []
    with named_ranges(loaded.model, stamps):
        session = Session(loaded, batch, context, loaded.info.prefill_chunk)
        session.prefill(random_prompt(loaded, length), batch)
        session.steps(WARM_STEPS)
        for _ in range(STEPS):
            stamps.take()
            before = session.clock.counts().seconds
            (whole,) = session.steps(1)
            after = session.clock.counts().seconds
            sampling = sum(after[part] - before[part] for part in SAMPLING_PARTS)
            steps.append((whole, {**stamps.take(), SAMPLING: sampling}))
    return typical(steps)


def typical(steps: Sequence[tuple[float, Mapping[str, float]]]) -> tuple[dict[str, float], float]:
    """The mean parts and the mean whole of the steps that are neither the fastest nor the slowest quarter.

    steps:  (whole, parts) of each; means of the same steps add up, which medians do not
    """
    ordered = sorted(steps, key=lambda step: step[0])
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    names = dict.fromkeys(name for _, parts in middle for name in parts)
    means = {name: statistics.fmean(parts.get(name, 0.0) for _, parts in middle) for name in names}
    return means, statistics.fmean(whole for whole, _ in middle)


def _on_cuda(bench: Bench, batch: int, context: int, length: int) -> tuple[dict[str, float], float]:
    """Seconds of each component's kernels, and of a whole step that nobody watches."""
    loaded, device = bench.subject.loaded, bench.subject.device
    session = Session(loaded, batch, context, loaded.info.prefill_chunk, captured=False)
    session.prefill(random_prompt(loaded, length), batch)
    session.steps(WARM_STEPS)
    whole = statistics.median(session.steps(STEPS))
    with named_ranges(loaded.model, TorchMarks()):
        # the profiler's own first use is slow, and would be counted as the first operators'
        attribute(lambda: session.steps(1), device)
        parts = attribute(lambda: session.steps(PROFILED_STEPS), device)
    return {name: part / PROFILED_STEPS for name, part in parts.items()}, whole


class TorchMarks:
    """Ranges that torch's profiler sees."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def enter(self, name: str) -> None:
        self._open.append(record_function(MARK + name))
        self._open[-1].__enter__()

    def leave(self) -> None:
        self._open.pop().__exit__(None, None, None)


def attribute(work: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds of kernels on a CUDA device, by the range that launched them."""
    # the profiler's library tells of its starts and stops on stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
    parts: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        parts[_range_of(event)] += _microseconds(event) / 1e6
    return {name: part for name, part in parts.items() if part}


def _microseconds(event: Any) -> float:
    """What the kernels took that an operator launched by itself.

    They stand among the events once more, on their own, and every range has a span on the device among its
    kernels.
    """
    return float(sum(each.duration for each in event.kernels if not each.name.startswith(MARK)))


def _range_of(event: Any) -> str:
    while event is not None:
        if event.name.startswith(MARK):
            return str(event.name.removeprefix(MARK))
        event = event.cpu_parent
    return SAMPLING
