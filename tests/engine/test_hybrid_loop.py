"""The loop with families that hold a recurrent state: the reference's tokens in every company."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kaminari.engine.errors import EngineFault
from kaminari.engine.params import SamplingParams
from kaminari.model.delta_state import GatedDeltaState
from tests.engine.harness import HandLoop, Sabotaged, cache_tensors, hand_loop, picture, poison, quiet
from tests.engine.test_loop import PROMPTS, Turns, conversation, golden_answer
from tests.hybrid_checkpoints import MINICPM_V_VARIANTS, QWEN3_5_VARIANTS
from tests.reference import Greedy, Reference, assert_same_tokens, differing_tokens

pytestmark = pytest.mark.on_device

VARIANTS = (*QWEN3_5_VARIANTS, *MINICPM_V_VARIANTS)
FAMILIES = ("qwen3_5", "minicpm_v")

Answers = Callable[[str], dict[str, Greedy]]


@pytest.fixture(scope="module")
def answers(golden: Callable[[str], Reference]) -> Answers:
    """The reference's greedy answers to every prompt, by variant; made once."""
    return cache(
        lambda variant: {name: golden_answer(golden(variant), turns) for name, turns in PROMPTS.items()}
    )


def compare(ours: dict[str, tuple[int, ...]], expected: dict[str, Greedy]) -> None:
    assert_same_tokens((ids, expected[name]) for name, ids in ours.items())


def run_all(engine: HandLoop) -> dict[str, tuple[int, ...]]:
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    assert engine.is_clean()
    return {name: one.token_ids() for name, one in running.items()}


@pytest.mark.parametrize("variant", VARIANTS)
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


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_change_no_token(
    variant: str, slots: int, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Cases num-batch-vs-single, num-left-pad, num-wrong-vlm-batch: neighbours of all lengths and kinds."""
    compare(run_all(hand_loop(checkpoint(variant), slots=slots)), answers(variant))


@pytest.mark.parametrize("variant", FAMILIES)
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


@pytest.mark.parametrize("variant", FAMILIES)
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
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", FAMILIES)
def test_joining_and_leaving_mid_way_changes_no_token(
    variant: str, seed: int, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    """Case hyb-slot-not-zeroed: requests come and go at random ticks, and the slots start full of NaN."""
    rng = random.Random(seed)
    engine = hand_loop(checkpoint(variant), slots=rng.randint(2, 5), chunk=rng.randint(3, 40))
    poison(engine.loop.runner.cache)
    kept = []
    for name in rng.choices(list(PROMPTS), k=20):
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


@pytest.mark.parametrize("variant", FAMILIES)
def test_the_border_falls_on_every_token_of_a_picture(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Case pos-chunk-emb."""
    engine = hand_loop(checkpoint(variant), slots=1, chunk=16)
    for pad in range(18):
        turns: Turns = [("user", ["x" * pad, picture(160, 120, 7), "Read the number."])]
        running = engine.submit(conversation(turns))
        engine.run()
        assert not differing_tokens(running.token_ids(), golden_answer(golden(variant), turns)), pad


@pytest.mark.parametrize("variant", FAMILIES)
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
    engine = hand_loop(checkpoint(variant), slots=3, chunk=20)
    poison(engine.loop.runner.cache)
    running = engine.submit(
        conversation(PROMPTS["two pictures"]), SamplingParams(temperature=0.0, max_tokens=12, n=3)
    )
    engine.run()
    for choice in running.answer().choices:
        assert not differing_tokens(tuple(choice.token_ids), answers(variant)["two pictures"])


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("variant", FAMILIES)
def test_nan_ends_its_request_alone_and_is_scrubbed(
    variant: str, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    engine = hand_loop(checkpoint(variant), slots=2, chunk=16, wrap=Sabotaged)
    model = engine.loaded.model
    assert isinstance(model, Sabotaged)
    victim = engine.submit(conversation(PROMPTS["text"]))
    neighbour = engine.submit(conversation(PROMPTS["picture"]))
    engine.step(3)
    model.nan_slots = {0}
    with quiet("kaminari.engine"):
        engine.step(6)
    model.nan_slots = set()
    assert any(isinstance(layer, GatedDeltaState) for layer in model.cache.layers)
    assert not any(tensor[0].isnan().any() for tensor in cache_tensors(model.cache))
    again = engine.submit(conversation(PROMPTS["text"]))
    engine.run()
    with pytest.raises(EngineFault, match="not finite"):
        victim.answer()
    assert not differing_tokens(neighbour.token_ids(), answers(variant)["picture"])
    assert not differing_tokens(again.token_ids(), answers(variant)["text"])
    assert engine.is_clean()
