"""The reference's tokens in every company, mode and chunk, for every family."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kaminari.engine.params import SamplingParams
from tests import checkpoints, hybrid_checkpoints
from tests.engine.harness import MODES, HandLoop, hand_loop, picture, poison
from tests.engine.prompts import PROMPTS, Answers, Turns, conversation, golden_answer
from tests.reference import Greedy, Reference, assert_same_tokens, differing_tokens

pytestmark = pytest.mark.on_device

VARIANTS = (
    *checkpoints.VARIANTS,
    *hybrid_checkpoints.QWEN3_5_VARIANTS,
    *hybrid_checkpoints.MINICPM_V_VARIANTS,
)
ALIKE = ("untied-grouped", "tied-ungrouped", "minicpm_v-released-sizes")
"""Variants that are not compiled: as graphs they differ from others in sizes alone; each takes seconds."""
EVERYWHERE = [
    (variant, mode)
    for variant in VARIANTS
    for mode in MODES
    if not (MODES[mode].compiled and variant in ALIKE)
]
RECURRENT = ("qwen3_5", "minicpm_v")
FAMILIES = ("tied-grouped", *RECURRENT)


def compare(ours: dict[str, tuple[int, ...]], expected: dict[str, Greedy]) -> None:
    assert_same_tokens((ids, expected[name]) for name, ids in ours.items())


def run_all(engine: HandLoop) -> dict[str, tuple[int, ...]]:
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    assert engine.is_clean()
    return {name: one.token_ids() for name, one in running.items()}


@pytest.mark.parametrize(("variant", "mode"), EVERYWHERE, indirect=["mode"])
@pytest.mark.usefixtures("mode")
def test_alone_each_prompt_gets_the_references_tokens(
    variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    engine = hand_loop(checkpoint(variant), slots=1)
    ours = {}
    for name, turns in PROMPTS.items():
        prompt = engine.loaded.frontend.prepare(conversation(turns))
        assert prompt.token_ids == answers(variant)[name].prompt_ids
        running = engine.submit(prompt)
        engine.run()
        ours[name] = running.token_ids()
    compare(ours, answers(variant))
    assert engine.is_clean()


@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize(("variant", "mode"), EVERYWHERE, indirect=["mode"])
@pytest.mark.usefixtures("mode")
def test_batches_change_no_token(
    variant: str, slots: int, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Cases num-batch-vs-single, num-left-pad, num-wrong-vlm-batch: neighbours of all lengths and kinds."""
    compare(run_all(hand_loop(checkpoint(variant), slots=slots)), answers(variant))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 33, 64, 1000])
def test_chunks_change_no_token(chunk: int, tiny_checkpoint: Path, answers: Answers) -> None:
    compare(run_all(hand_loop(tiny_checkpoint, slots=3, chunk=chunk)), answers("tied-grouped"))


@pytest.mark.parametrize("variant", RECURRENT)
def test_no_chunk_size_from_1_to_70_changes_a_token(
    variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Case hyb-conv-boundary: the convolution's last inputs and the state cross every border."""
    names = ("two pictures", "picture in an earlier turn", "big picture")
    engine = hand_loop(checkpoint(variant), slots=2)
    prompts = {name: engine.loaded.frontend.prepare(conversation(PROMPTS[name])) for name in names}
    for chunk in range(1, 71):
        engine.loop.scheduler.prefill_chunk = chunk
        poison(engine.loop.runner.cache)
        running = {name: engine.submit(prompt) for name, prompt in prompts.items()}
        engine.run()
        for name, one in running.items():
            assert not differing_tokens(one.token_ids(), answers(variant)[name]), (name, chunk)


@pytest.mark.parametrize("variant", RECURRENT)
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 63, 64, 65])
def test_long_prompts_in_chunks_change_no_token(
    chunk: int, variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Case hyb-conv-boundary, over a prompt that is longer than the rule's own chunk."""
    engine = hand_loop(checkpoint(variant), slots=1, chunk=chunk)
    running = engine.submit(conversation(PROMPTS["long text"]))
    engine.run()
    assert not differing_tokens(running.token_ids(), answers(variant)["long text"])


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("variant", "seed"),
    [
        *(("tied-grouped", seed) for seed in range(6)),
        *((variant, seed) for variant in RECURRENT for seed in range(4)),
    ],
)
def test_joining_and_leaving_mid_way_changes_no_token(
    variant: str, seed: int, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Case hyb-slot-not-zeroed: requests come and go at random ticks, and the slots start full of NaN."""
    rng = random.Random(seed)
    engine = hand_loop(checkpoint(variant), slots=rng.randint(2, 5), chunk=rng.randint(3, 40))
    poison(engine.loop.runner.cache)
    kept = []
    for name in rng.choices(list(PROMPTS), k=24):
        running = engine.submit(conversation(PROMPTS[name]))
        if rng.random() < 0.3:
            engine.step(rng.randint(0, 8))
            running.stream.abort()
        else:
            kept.append((name, running))
        engine.step(rng.randint(0, 10))
    engine.run()
    assert len(kept) > 8
    for name, running in kept:
        assert not differing_tokens(running.token_ids(), answers(variant)[name]), name
    assert engine.is_clean()


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("variant", FAMILIES)
def test_poison_in_every_slot_changes_nothing(
    variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Case hyb-slot-not-zeroed: a freed slot filled with NaN is as good as a fresh one."""
    engine = hand_loop(checkpoint(variant), slots=3, chunk=10)
    for name, turns in PROMPTS.items():
        poison(engine.loop.runner.cache)
        running = engine.submit(conversation(turns))
        engine.run()
        assert not differing_tokens(running.token_ids(), answers(variant)[name]), name


@pytest.fixture(scope="module")
def shifted(golden: Callable[[str], Reference]) -> Callable[[str], list[tuple[Turns, Greedy]]]:
    """A picture behind words of every length, and the reference's answers; made once."""

    def made(variant: str) -> list[tuple[Turns, Greedy]]:
        prompts: list[Turns] = [
            [("user", ["x" * pad, picture(160, 120, 7), "Read the number."])] for pad in range(18)
        ]
        return [(turns, golden_answer(golden(variant), turns)) for turns in prompts]

    return cache(made)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("variant", FAMILIES)
def test_the_border_falls_on_every_token_of_a_picture(
    variant: str,
    checkpoint: Callable[[str], Path],
    shifted: Callable[[str], list[tuple[Turns, Greedy]]],
) -> None:
    """Case pos-chunk-emb: a picture cut by a chunk border takes up its rows where it left them."""
    engine = hand_loop(checkpoint(variant), slots=1, chunk=16)
    for pad, (turns, wanted) in enumerate(shifted(variant)):
        running = engine.submit(conversation(turns))
        engine.run()
        assert not differing_tokens(running.token_ids(), wanted), pad


@pytest.mark.parametrize("variant", RECURRENT)
def test_no_prompt_length_gives_nan_or_other_tokens(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Case num-short-prompt-nan: prompts of every length over a chunk of the rule."""
    engine = hand_loop(checkpoint(variant), slots=4, chunk=512)
    for first in range(0, 70, 4):
        turns: list[Turns] = [[("user", ["a" * length])] for length in range(first, first + 4)]
        running = [
            engine.submit(conversation(turn), SamplingParams(temperature=0, max_tokens=4)) for turn in turns
        ]
        engine.run()
        for turn, one in zip(turns, running, strict=True):
            assert not differing_tokens(one.token_ids(), golden_answer(golden(variant), turn, tokens=4))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("variant", FAMILIES)
def test_choices_take_a_copy_of_the_state_along(
    variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    engine = hand_loop(checkpoint(variant), slots=3, chunk=24)
    poison(engine.loop.runner.cache)
    running = engine.submit(
        conversation(PROMPTS["two pictures"]), SamplingParams(temperature=0.0, max_tokens=12, n=3)
    )
    engine.run()
    for choice in running.answer().choices:
        assert not differing_tokens(tuple(choice.token_ids), answers(variant)["two pictures"])
