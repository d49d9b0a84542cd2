"""How far a model that runs from a pack is from the same model with its own weights, on prompts.

Both see the same tokens: each prompt, and behind it the answer that the checkpoint's own weights gave. Errors
are root mean squares over all values, relative to those of the checkpoint's own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.stages import LOGITS
from kaminari.verify.replay import Replayer


@dataclass(frozen=True, slots=True)
class Observation:
    """One prompt in one model.

    answer:  its own greedy tokens
    stages:  output of each stage, rows [n, width]; the logits [len(answer), vocab] are those of the answer
             that both models are given
    """

    prompt: str
    answer: tuple[int, ...]
    stages: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PromptQuality:
    """One prompt, compared.

    tokens:      of the answer
    same:        tokens of the pack's own greedy answer before it parts
    agreement:   share of the answer's places where both models' likeliest token is the same
    divergence:  mean Kullback-Leibler divergence of the pack's next token from the other's, in nats
    """

    prompt: str
    tokens: int
    same: int
    agreement: float
    divergence: float
    logit_error: float


@dataclass(frozen=True, slots=True)
class Quality:
    """All prompts, compared. `stage_errors`: by stage in order of computation, the mean over prompts."""

    prompts: tuple[PromptQuality, ...]
    stage_errors: Mapping[str, float]


@torch.inference_mode()
def observe(
    replayer: Replayer,
    prompts: Mapping[str, PreparedPrompt],
    tokens: int,
    given: Sequence[Observation] = (),
) -> list[Observation]:
    """Run a model over prompts, with greedy answers of `tokens` tokens.

    given:  observations of the other model, whose answers are then fed instead of the own ones
    """
    answers = {each.prompt: each.answer for each in given}
    seen = []
    for name, prepared in prompts.items():
        own = replayer.greedy(prepared, tokens)
        fed = answers.get(name, own)
        stages = replayer.observe(with_answer(prepared, fed[:-1]), rows=len(fed))
        seen.append(Observation(name, own, {stage: each.output for stage, each in stages.items()}))
    return seen


def compare(plain: Sequence[Observation], packed: Sequence[Observation]) -> Quality:
    """Hold the pack's observations to those of the checkpoint's own weights."""
    errors: dict[str, list[float]] = {}
    prompts = []
    for ours, theirs in zip(packed, plain, strict=True):
        for stage, values in theirs.stages.items():
            errors.setdefault(stage, []).append(relative_error(ours.stages[stage], values))
        logits, wanted = ours.stages[LOGITS].double(), theirs.stages[LOGITS].double()
        pairs = zip(ours.answer, theirs.answer, strict=True)
        parted = (place for place, (mine, right) in enumerate(pairs) if mine != right)
        prompts.append(
            PromptQuality(
                prompt=theirs.prompt,
                tokens=len(theirs.answer),
                same=next(parted, len(theirs.answer)),
                agreement=float((logits.argmax(-1) == wanted.argmax(-1)).double().mean()),
                divergence=float(
                    torch.nn.functional.kl_div(
                        logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
                    )
                ),
                logit_error=relative_error(logits, wanted),
            )
        )
    order = max((each.stages for each in plain), key=len)
    return Quality(tuple(prompts), {stage: fmean(errors[stage]) for stage in order})


def with_answer(prepared: PreparedPrompt, answer: Sequence[int]) -> PreparedPrompt:
    """A prompt that goes on with tokens of an answer."""
    first = len(prepared.token_ids)
    places = np.arange(first, first + len(answer)) + prepared.position_offset
    return replace(
        prepared,
        token_ids=(*prepared.token_ids, *answer),
        positions=np.concatenate([prepared.positions, np.broadcast_to(places, (3, len(answer)))], axis=1),
    )


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """|ours - theirs| / |theirs| in the Frobenius norm; 0 where both are 0."""
    off = float((ours.double() - theirs.double()).norm())
    return off / float(theirs.double().norm()) if off else 0.0
