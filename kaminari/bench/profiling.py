"""Where a decode step's time goes, by component, as `torch.profiler` sees it.

The steps run uncaptured: a captured one is a single call. An operator belongs to the innermost named range
that it runs in, and so, on a CPU, does what a component does outside of operators: our own kernels, and the
Python around them. What runs outside the model is sampling; what is left of an ordinary step's median is the
host's. Everything is a little slower while it is watched, so the host's part is a little too small.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from kaminari.bench.bench import Bench
from kaminari.bench.decode import WARM_STEPS
from kaminari.bench.recorder import Case
from kaminari.bench.result import Share
from kaminari.bench.session import Session, random_prompt
from kaminari.model.family import VisionLanguageModel
from kaminari.model.layers import Norm, SwiGLU
from kaminari.model.linear import Linear

MARK = "kaminari: "
AROUND, HOST, SAMPLING = "embedding, rotation, sums", "host", "sampling"
MIXING = {"attend": "attention", "recur": "recurrence"}
"""What a layer's mixer does between its projections."""
PROFILED_STEPS = 3
PLAIN_STEPS = 8


def profile_decode(bench: Bench, batch: int, context: int) -> None:
    """Attribute a step of `batch` rows at about `context` tokens, and keep the shares."""
    subject, recorder = bench.subject, bench.recorder
    # the first token is the prompt's
    tokens = 1 + WARM_STEPS + 1 + PROFILED_STEPS + PLAIN_STEPS
    session = Session(subject.loaded, batch, context, subject.loaded.info.prefill_chunk, captured=False)
    session.prefill(random_prompt(subject.loaded, context - tokens), batch)
    session.steps(WARM_STEPS)
    plain = statistics.median(session.steps(PLAIN_STEPS))
    with named_ranges(subject.loaded.model):
        # the profiler's own first use is slow, and would be counted as the first operators'
        attribute(lambda: session.steps(1), subject.device)
        parts = attribute(lambda: session.steps(PROFILED_STEPS), subject.device)
    case = {"batch": batch, "context": context}
    recorder.shares += shares(case, {name: part / PROFILED_STEPS for name, part in parts.items()}, plain)


def shares(case: Case, parts: dict[str, float], whole: float) -> list[Share]:
    """Components by size, the host's remainder last."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    host = max(0.0, whole - sum(parts.values()))
    return [Share(case=case, component=name, seconds=part) for name, part in (*ordered, (HOST, host))]


def attribute(work: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds by the range that they were spent in."""
    # the profiler's library tells of its starts and stops on stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        work()
    parts: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        parts[_range_of(event)] += _microseconds(event, device) / 1e6
    return {name: part for name, part in parts.items() if part}


def _microseconds(event: Any, device: torch.device) -> float:
    """What an operator or range took by itself.

    On CUDA that is the kernels that it launched: those stand among the events once more, on their own, and
    every range has a span on the device among its kernels.
    """
    if device.type == "cuda":
        return float(sum(each.duration for each in event.kernels if not each.name.startswith(MARK)))
    return 0.0 if event.name == MARK + AROUND else float(event.self_cpu_time_total)


@contextmanager
def named_ranges(model: VisionLanguageModel) -> Iterator[None]:
    """Give the decoder's parts their names inside the `with`."""
    network: Any = model
    text = network.network.text
    with ExitStack() as undo:
        for part in text.modules():
            if (name := component_of(part)) is not None:
                _watch(part, name, undo)
            if isinstance(part, Norm):
                for verb in ("behind", "turned"):
                    _wrap(part, verb, "norms", undo)
            for verb, name in MIXING.items():
                if hasattr(part, verb):
                    _wrap(part, verb, name, undo)
        for verb, name in (("forward", AROUND), ("head", "head")):
            _wrap(network, verb, name, undo)
        yield


def component_of(part: nn.Module) -> str | None:
    """What a module of a decoder is called, or None where it belongs to what it stands in."""
    if isinstance(part, Linear):
        return "projections"
    if isinstance(part, Norm):
        return "norms"
    return "activation" if isinstance(part, SwiGLU) else None


def _watch(part: nn.Module, name: str, undo: ExitStack) -> None:
    open_ranges: list[Any] = []

    def enter(_: nn.Module, __: Sequence[object]) -> None:
        open_ranges.append(record_function(MARK + name))
        open_ranges[-1].__enter__()

    def leave(_: nn.Module, __: Sequence[object], ___: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    undo.callback(part.register_forward_pre_hook(enter).remove)
    undo.callback(part.register_forward_hook(leave).remove)


def _wrap(owner: Any, verb: str, name: str, undo: ExitStack) -> None:
    whole = getattr(owner, verb)

    def ranged(*args: object) -> object:
        with record_function(MARK + name):
            return whole(*args)

    setattr(owner, verb, ranged)
    undo.callback(delattr, owner, verb)


def _range_of(event: Any) -> str:
    while event is not None:
        if event.name.startswith(MARK):
            return str(event.name.removeprefix(MARK))
        event = event.cpu_parent
    return SAMPLING
