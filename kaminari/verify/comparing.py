"""Measures how far kaminari is from the reference at each stage, and says where it is too far.

A difference is relative: at each value it is divided by that value's own size plus the median size of the
stage's values, so that a few huge activations (which trained models have) hide nothing. Of a stage, the
largest counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.verify.recording import StageRecord
from kaminari.verify.replay import Mode, Replay
from kaminari.verify.trace import Greedy, PromptTrace

# Sound float32 stays below 1e-5 isolated and 2e-4 through; the exact GELU in one vision layer makes 3e-4.
# Sound bfloat16 reaches 0.06 isolated and 0.3 through: it shows gross faults only.
TOLERANCES: Mapping[torch.dtype, Mapping[Mode, float]] = {
    torch.float32: {Mode.ISOLATED: 1e-4, Mode.THROUGH: 5e-3},
    torch.bfloat16: {Mode.ISOLATED: 0.2, Mode.THROUGH: 1.0},
}
NEAR_TIE = 1e-4
COARSE_TIE = 2**-5  # of the largest logit: eight units in the last place of bfloat16


@dataclass(frozen=True, slots=True)
class StageDifference:
    """The largest differences of one stage; infinite where shapes differ, or something is not finite.

    entering:  of what arrives at the stage before anything is fed: it shows faults between stages
    """

    stage: str
    entering: float
    output: float
    tolerance: float

    @property
    def fault(self) -> str | None:
        """Where it is out of tolerance: in its input, in its output, or nowhere."""
        if not self.entering <= self.tolerance:
            return "input"
        return None if self.output <= self.tolerance else "output"


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """Greedy answers of one prompt.

    parted:   the first token that differs, or None
    excused:  there the reference's own top two logits are closer than the bound
    """

    prompt: str
    tokens: int
    parted: int | None
    excused: bool

    @property
    def passed(self) -> bool:
        return self.parted is None or self.excused


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest relative difference; infinite where shapes differ or values are not finite."""
    if ours.shape != theirs.shape:
        return math.inf
    if not theirs.numel():
        return 0.0
    mine, wanted = ours.double(), theirs.double()
    sizes = wanted.abs()
    largest = float(((mine - wanted).abs() / (sizes + _scale(sizes))).max())
    return largest if math.isfinite(largest) else math.inf


def exact(ours: Tensor, theirs: Tensor) -> float:
    """0 where two tensors of whole numbers are equal, else infinite."""
    return 0.0 if torch.equal(ours, theirs) else math.inf


def compare_inputs(replay: Replay, trace: PromptTrace, tolerance: float) -> Iterator[StageDifference]:
    """What the prompt side made: tokens and positions exactly, patches as any other stage."""
    yield StageDifference("tokens", 0.0, exact(replay.token_ids, trace.token_ids), 0.0)
    yield StageDifference("positions", 0.0, exact(replay.positions, trace.positions), 0.0)
    if trace.patches is not None or replay.patches is not None:
        nothing = torch.empty(0)
        theirs = nothing if trace.patches is None else trace.patches
        ours = nothing if replay.patches is None else replay.patches
        yield StageDifference("patches", 0.0, difference(ours, theirs), tolerance)


def compare_stages(replay: Replay, trace: PromptTrace, tolerance: float) -> Iterator[StageDifference]:
    """Every stage of the reference in order, then those that only kaminari has."""
    nothing = StageRecord(torch.empty(0), torch.empty(0))
    for name in dict.fromkeys([*trace.stages, *replay.stages]):
        theirs, ours = trace.stages.get(name, nothing), replay.stages.get(name, nothing)
        if ours is nothing or theirs is nothing:
            yield StageDifference(name, math.inf, math.inf, tolerance)
            continue
        entering = difference(ours.entering, theirs.entering)
        yield StageDifference(name, entering, difference(ours.output, theirs.output), tolerance)


def compare_greedy(ours: Sequence[int], golden: Greedy, prompt: str, bound: float) -> GreedyComparison:
    """Hold an answer to the reference's. What follows the first difference is another answer."""
    pairs = zip(ours, golden.token_ids, strict=True)
    parted = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    excused = parted is not None and golden.gaps[parted] < bound
    return GreedyComparison(prompt, len(golden.token_ids), parted, excused)


def near_tie(dtype: torch.dtype, logits: Tensor | None) -> float:
    """How close two logits must be for either to be a right choice."""
    if dtype is torch.float32 or logits is None:
        return NEAR_TIE
    return COARSE_TIE * float(logits.abs().max())


def _scale(sizes: Tensor) -> float:
    """The median size; the mean where most values are 0; 1 where all are."""
    return float(sizes.median()) or float(sizes.mean()) or 1.0
