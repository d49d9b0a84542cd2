"""Snapshots of slots: save, go on, restore, go on again, at every position of a prompt with two pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kaminari.model.batch import FeatureRows
from kaminari.model.delta_state import GatedDeltaState
from tests.engine.harness import HandLoop, hand_loop, poison
from tests.engine.prompts import PROMPTS, Turns, conversation, golden_answer
from tests.model.steps import Prompt, Row, run, step
from tests.reference import Greedy, Reference, differing_tokens

FAMILIES = ("qwen3_5", "minicpm_v", "tied-grouped")


def on_device(engine: HandLoop, turns: Turns, golden: Greedy) -> Prompt:
    """A prompt as the frontend makes it, with the vision rows of all its pictures."""
    prompt = engine.loaded.frontend.prepare(conversation(turns))
    assert prompt.token_ids == golden.prompt_ids
    rows = [engine.loaded.model.encode_picture(picture) for picture in prompt.pictures]
    features = None
    if rows:
        features = FeatureRows(
            index=torch.cat([torch.arange(span.start, span.stop) for span in prompt.spans]),
            embeddings=torch.cat([each.embeddings for each in rows]),
            deepstack=torch.cat([each.deepstack for each in rows], dim=1),
        )
    positions = torch.from_numpy(prompt.positions)
    return Prompt(torch.tensor(prompt.token_ids), positions, prompt.position_offset, features, golden)


@pytest.mark.parametrize("variant", FAMILIES)
@torch.inference_mode()
def test_every_position_can_be_saved_and_restored(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    engine = hand_loop(checkpoint(variant))
    model = engine.loaded.model
    turns = PROMPTS["two pictures"]
    prompt = on_device(engine, turns, golden_answer(golden(variant), turns, tokens=6))
    cache = model.new_cache(2, prompt.length + 8)
    row = Row(prompt, slot=0, chunk=1)
    cache.claim(0)
    snapshots = []
    while row.cached < prompt.length - 1:
        step(model, cache, [row])
        snapshots.append(cache.save(0, row.cached))
    run(model, cache, [row])
    assert not differing_tokens(row.answer, prompt.golden)
    assert [snapshot.length for snapshot in snapshots] == list(range(1, prompt.length))
    for snapshot in snapshots:
        poison(cache)
        cache.restore(1, snapshot)
        again = Row(prompt, slot=1, cached=snapshot.length)
        run(model, cache, [again])
        assert not differing_tokens(again.answer, prompt.golden), snapshot.length


@pytest.mark.parametrize("variant", ["qwen3_5", "minicpm_v"])
@torch.inference_mode()
def test_a_snapshot_goes_on_bit_for_bit_for_200_tokens(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Case hyb-state-dtype: the running state is float32, and so is a saved one."""
    engine = hand_loop(checkpoint(variant), context=1024)
    model = engine.loaded.model
    turns: Turns = [("user", ["one two three four five six " * 24])]
    wanted = golden_answer(golden(variant), turns, tokens=1)
    length = len(wanted.prompt_ids)
    assert length > 512
    prompt = on_device(engine, turns, Greedy(wanted.prompt_ids, (0,) * 200, (1.0,) * 200))
    cache = model.new_cache(2, length + 201)
    first = Row(prompt, slot=0, chunk=512)
    cache.claim(0)
    step(model, cache, [first])
    assert first.cached == 512
    snapshot = cache.save(0, first.cached)
    run(model, cache, [first])
    poison(cache, [1])
    cache.restore(1, snapshot)
    second = Row(prompt, slot=1, chunk=512, cached=snapshot.length)
    run(model, cache, [second])
    assert second.answer == first.answer
    assert len(set(first.answer)) > 10
    for layer in cache.layers:
        if isinstance(layer, GatedDeltaState):
            assert torch.equal(layer.state[0], layer.state[1])
            assert torch.equal(layer.tail[0], layer.tail[1])


@pytest.mark.parametrize("variant", ["qwen3_5", "minicpm_v"])
@torch.inference_mode()
def test_rows_of_one_step_never_see_one_another(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Cases hyb-pad-continue and hyb-pad-batch1: chunks of 16 beside decode rows, and nothing is padded."""
    engine = hand_loop(checkpoint(variant))
    model = engine.loaded.model
    names = ("text", "two pictures", "system", "big picture")
    prompts = [
        on_device(engine, PROMPTS[name], golden_answer(golden(variant), PROMPTS[name])) for name in names
    ]
    capacity = max(prompt.length for prompt in prompts) + 16
    together, alone = model.new_cache(4, capacity), model.new_cache(4, capacity)
    poison(together)
    poison(alone)
    rows = [Row(prompt, slot, chunk=16, wait=3 * slot) for slot, prompt in enumerate(prompts)]
    run(model, together, rows, seed=1)
    for slot, prompt in enumerate(prompts):
        single = Row(prompt, slot)
        run(model, alone, [single])
        assert not differing_tokens(rows[slot].answer, prompt.golden)
        assert not differing_tokens(single.answer, prompt.golden)
    for mine, other in zip(together.layers, alone.layers, strict=True):
        if isinstance(mine, GatedDeltaState) and isinstance(other, GatedDeltaState):
            torch.testing.assert_close(mine.state, other.state, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(mine.tail, other.tail, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["qwen3_5", "minicpm_v"])
@torch.inference_mode()
def test_a_draft_taken_back_leaves_no_trace(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """A draft of three wrong tokens behind the prompt's first half, of which any number is kept."""
    engine = hand_loop(checkpoint(variant))
    model = engine.loaded.model
    turns = PROMPTS["two pictures"]
    prompt = on_device(engine, turns, golden_answer(golden(variant), turns, tokens=6))
    for kept in range(4):
        cache = model.new_cache(1, prompt.length + 8)
        row = Row(prompt, slot=0, chunk=20)
        cache.claim(0)
        step(model, cache, [row])
        for layer in cache.layers:
            layer.begin_draft([0], 3)
        row.chunk = 3
        step(model, cache, [row])
        for layer in cache.layers:
            layer.commit(0, 20 + kept)
        row.cached, row.chunk = 20 + kept, 1 << 20
        run(model, cache, [row])
        assert not differing_tokens(row.answer, prompt.golden), kept
