"""Holds a loaded model to a trace: every prompt, in every mode, and then the greedy answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.stages import LOGITS
from kaminari.verify.comparing import (
    TOLERANCES,
    GreedyComparison,
    StageDifference,
    compare_greedy,
    compare_inputs,
    compare_stages,
    near_tie,
)
from kaminari.verify.replay import Mode, Replayer
from kaminari.verify.trace import PromptTrace, Trace


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """One prompt in one mode; `stages` is in order of computation and begins with the prompt's own side."""

    prompt: str
    mode: Mode
    stages: tuple[StageDifference, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """The first stage out of tolerance; `where` is input or output."""

    prompt: str
    mode: Mode
    stage: StageDifference
    where: str


@dataclass(frozen=True, slots=True)
class Report:
    comparisons: tuple[PromptComparison, ...]
    answers: tuple[GreedyComparison, ...]

    @property
    def passed(self) -> bool:
        return self.first_fault is None and all(answer.passed for answer in self.answers)

    @property
    def first_fault(self) -> Fault | None:
        """The earliest stage out of tolerance in any prompt. Isolated runs count first: they pin a fault."""
        for mode in (Mode.ISOLATED, Mode.THROUGH):
            order = [stage.stage for stage in self.largest(mode)]
            faults = [
                Fault(comparison.prompt, mode, stage, stage.fault)
                for comparison in self.comparisons
                for stage in comparison.stages
                if comparison.mode is mode and stage.fault is not None
            ]
            if faults:
                return min(faults, key=lambda fault: order.index(fault.stage.stage))
        return None

    def largest(self, mode: Mode) -> tuple[StageDifference, ...]:
        """For every stage the largest differences of all prompts, in order of computation."""
        runs = [comparison.stages for comparison in self.comparisons if comparison.mode is mode]
        longest_first = sorted(runs, key=len, reverse=True)
        names = dict.fromkeys(stage.stage for run in longest_first for stage in run)
        return tuple(
            _largest([stage for run in runs for stage in run if stage.stage == name]) for name in names
        )


def hold_to(
    trace: Trace,
    replayer: Replayer,
    dtype: torch.dtype,
    *,
    modes: Sequence[Mode] = tuple(Mode),
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run and compare everything in the trace. `dtype` is the coarsest that the model runs in.

    A prompt whose tokens differ is not run: its stages have nothing to be compared with.

    Raises `RequestError` for a prompt that cannot be made.
    """
    comparisons: list[PromptComparison] = []
    answers: list[GreedyComparison] = []
    for each in trace.prompts:
        prepared = replayer.prepare(each.prompt)
        for mode in modes:
            progress(f"running kaminari: {each.prompt.name}, {mode.value}")
            differences = tuple(_differences(replayer, prepared, each, mode, TOLERANCES[dtype][mode]))
            comparisons.append(PromptComparison(each.prompt.name, mode, differences))
        if _same_tokens(prepared, each):
            progress(f"running kaminari: {each.prompt.name}, greedily")
            ours = replayer.greedy(prepared, len(each.greedy.token_ids))
            logits = each.stages.get(LOGITS)
            bound = near_tie(dtype, None if logits is None else logits.output)
            answers.append(compare_greedy(ours, each.greedy, each.prompt.name, bound))
    return Report(tuple(comparisons), tuple(answers))


def _differences(
    replayer: Replayer, prepared: PreparedPrompt, trace: PromptTrace, mode: Mode, tolerance: float
) -> Iterator[StageDifference]:
    if not _same_tokens(prepared, trace):
        yield StageDifference("tokens", 0.0, math.inf, 0.0)
        return
    replay = replayer.run(prepared, trace, mode)
    yield from compare_inputs(replay, trace, tolerance)
    yield from compare_stages(replay, trace, tolerance)


def _same_tokens(prepared: PreparedPrompt, trace: PromptTrace) -> bool:
    return list(prepared.token_ids) == trace.token_ids.tolist()


def _largest(stages: Sequence[StageDifference]) -> StageDifference:
    return StageDifference(
        stages[0].stage,
        max(stage.entering for stage in stages),
        max(stage.output for stage in stages),
        stages[0].tolerance,
    )
