"""The slot cache: its verbs, what it refuses, and that nothing of one owner reaches another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kaminari.model.batch import RowLengths
from kaminari.model.cache import AttentionKV, LayerState, SlotCache, SlotSnapshot
from kaminari.model.family import VisionLanguageModel
from tests.model.steps import Prompt, Row, ask, load, noise_picture, prepare, run, step
from tests.reference import Reference, assert_same_tokens

CPU = torch.device("cpu")


def small_cache(slots: int = 3, capacity: int = 8, layers: int = 2) -> SlotCache:
    states = [AttentionKV(slots, 2, capacity, 4, device=CPU, dtype=torch.float32) for _ in range(layers)]
    for number, layer in enumerate(states):
        layer.keys.normal_(generator=torch.Generator().manual_seed(number))
        layer.values.normal_(generator=torch.Generator().manual_seed(100 + number))
    return SlotCache(states, slots, capacity)


def tensors(cache: SlotCache) -> list[Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


class CheckpointOnly(LayerState):
    """A state that can only be kept at the length that it has, as a recurrent one."""

    def __init__(self, length: int) -> None:
        self.length = length

    def claim(self, slot: int) -> None: ...

    def scrub(self, slot: int) -> None: ...

    def copy(self, source: int, target: int, length: int) -> None: ...

    def save(self, slot: int, length: int) -> dict[str, Tensor]:
        return {}

    def restore(self, slot: int, saved: dict[str, Tensor]) -> None: ...

    def can_truncate(self, slot: int, length: int) -> bool:
        return length == self.length

    def truncate(self, slot: int, length: int) -> None:
        assert length == self.length

    def begin_draft(self, slots: Sequence[int], tokens: int) -> None: ...

    def commit(self, slot: int, length: int) -> None: ...

    def check_start(self, slot: int, start: int) -> None: ...

    def advance(self, slots: Sequence[int]) -> None: ...

    def assume(self, slot: int, length: int) -> None: ...

    def nbytes(self) -> int:
        return 0


def test_copy_takes_the_first_tokens_and_nothing_else() -> None:
    cache = small_cache()
    before = [tensor.clone() for tensor in tensors(cache)]
    cache.copy(2, 0, 5)
    for tensor, old in zip(tensors(cache), before, strict=True):
        assert torch.equal(tensor[0, :, :5], old[2, :, :5])
        assert torch.equal(tensor[0, :, 5:], old[0, :, 5:])
        assert torch.equal(tensor[1:], old[1:])


def test_save_and_restore_move_a_slot_as_a_whole() -> None:
    cache = small_cache()
    before = [tensor.clone() for tensor in tensors(cache)]
    snapshot = cache.save(1, 6)
    assert snapshot.length == 6
    assert snapshot.nbytes() == 2 * 2 * (2 * 6 * 4) * 4
    cache.scrub(1)
    for tensor in tensors(cache):
        assert torch.equal(tensor[1], torch.zeros_like(tensor[1]))
    cache.restore(2, snapshot)
    for tensor, old in zip(tensors(cache), before, strict=True):
        assert torch.equal(tensor[2, :, :6], old[1, :, :6])
        assert torch.equal(tensor[2, :, 6:], old[2, :, 6:])
        assert torch.equal(tensor[0], old[0])


def test_scrub_removes_nan_from_one_slot_only() -> None:
    cache = small_cache()
    kept = [tensor[[0, 2]].clone() for tensor in tensors(cache)]
    for tensor in tensors(cache):
        tensor[1] = math.nan
    cache.scrub(1)
    for tensor, old in zip(tensors(cache), kept, strict=True):
        assert torch.equal(tensor[1], torch.zeros_like(tensor[1]))
        assert torch.equal(tensor[[0, 2]], old)


def test_truncate_is_all_or_nothing() -> None:
    cache = small_cache()
    assert cache.truncate(0, 3)
    mixed = SlotCache([*cache.layers, CheckpointOnly(4)], 3, 8)
    assert not mixed.truncate(0, 3)
    assert mixed.truncate(0, 4)


def test_the_cache_counts_its_bytes() -> None:
    assert small_cache().nbytes() == 2 * 2 * (3 * 2 * 8 * 4) * 4
    assert SlotSnapshot(0, ()).nbytes() == 0


@pytest.mark.parametrize("slot", [-1, 3, 99])
def test_a_slot_that_is_not_there_is_refused_before_anything_changes(slot: int) -> None:
    cache = small_cache()
    snapshot = cache.save(0, 4)
    before = [tensor.clone() for tensor in tensors(cache)]
    for verb in (
        lambda: cache.claim(slot),
        lambda: cache.scrub(slot),
        lambda: cache.copy(slot, 0, 2),
        lambda: cache.copy(0, slot, 2),
        lambda: cache.save(slot, 2),
        lambda: cache.restore(slot, snapshot),
        lambda: cache.truncate(slot, 2),
    ):
        with pytest.raises(ValueError, match=f"no slot {slot}: there are 3"):
            verb()
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), before, strict=True))


@pytest.mark.parametrize("length", [-1, 9])
def test_a_length_that_does_not_fit_is_refused(length: int) -> None:
    cache = small_cache()
    for verb in (
        lambda: cache.copy(0, 1, length),
        lambda: cache.save(0, length),
        lambda: cache.truncate(0, length),
        lambda: cache.restore(0, replace(cache.save(0, 4), length=length)),
    ):
        with pytest.raises(ValueError, match=f"length of {length} tokens does not fit a slot of 8"):
            verb()


def test_a_snapshot_of_another_shape_is_refused() -> None:
    cache = small_cache()
    with pytest.raises(ValueError, match="a snapshot of 1 layers, and 2 here"):
        cache.restore(0, small_cache(layers=1).save(0, 4))
    longer = small_cache(capacity=20).save(0, 12)
    with pytest.raises(ValueError, match="do not fit"):
        cache.restore(0, replace(longer, length=4))
    good = cache.save(0, 4)
    torn = {**good.layers[0], "values": good.layers[0]["values"][:, :3]}
    with pytest.raises(ValueError, match="do not fit"):
        cache.restore(0, replace(good, layers=(torn, good.layers[1])))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (RowLengths((0, 0), (1, 1), (2, 2)), "slots of their own"),
        (RowLengths((3,), (1,), (2,)), "no slot 3"),
        (RowLengths((-1,), (1,), (2,)), "no slot -1"),
        (RowLengths((0,), (1,), (9,)), "does not fit a slot of 8"),
        (RowLengths((0,), (0,), (2,)), "0 new tokens"),
        (RowLengths((0,), (3,), (2,)), "3 new tokens do not fit a length of 2"),
        (RowLengths((0, 1), (1,), (2, 2)), "one entry per row"),
    ],
)
def test_rows_that_do_not_fit_the_cache_are_refused(rows: RowLengths, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        small_cache().check_rows(rows)


@pytest.mark.parametrize(("slots", "capacity"), [(0, 8), (2, 0), (-1, 8)])
def test_a_cache_of_nothing_is_refused(slots: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="at least 1 slot of 1 token"):
        SlotCache([], slots, capacity)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> VisionLanguageModel:
    return load(tiny_checkpoint)


@pytest.fixture(scope="module")
def prompts(model: VisionLanguageModel, tiny_reference: Reference) -> list[Prompt]:
    turns = [ask("Hello"), ask(noise_picture(1, 96, 64), "What is it?"), ask("one two three " * 9)]
    return [prepare(model, tiny_reference, each) for each in turns]


def poison(cache: SlotCache, slots: Sequence[int]) -> None:
    for tensor in tensors(cache):
        tensor[list(slots)] = math.nan


def logits_of(
    model: VisionLanguageModel, cache: SlotCache, rows: Sequence[Row], steps: int = 6
) -> list[Tensor]:
    for row in rows:
        cache.claim(row.slot)
    return [step(model, cache, rows) for _ in range(steps)]


def test_poisoned_slots_change_no_bit(model: VisionLanguageModel, prompts: list[Prompt]) -> None:
    """NaN in the slots before the claim, and in all their neighbours', for prefill and decode steps."""

    def fresh() -> list[Row]:
        return [Row(prompt, slot, chunk=30) for prompt, slot in zip(prompts, (4, 1, 2), strict=True)]

    clean = logits_of(model, model.new_cache(6, 150), fresh())
    dirty = model.new_cache(6, 150)
    poison(dirty, range(6))
    for wanted, got in zip(clean, logits_of(model, dirty, fresh()), strict=True):
        assert torch.isfinite(wanted).all()
        assert torch.equal(got, wanted)


def test_a_row_that_turned_nan_leaves_its_neighbours_alone(
    model: VisionLanguageModel, prompts: list[Prompt]
) -> None:
    rows = [Row(prompt, slot) for slot, prompt in enumerate(prompts)]
    cache = model.new_cache(3, 150)
    step(model, cache, rows)
    poison(cache, [1])
    logits = step(model, cache, rows)
    assert torch.isnan(logits[1]).all()
    assert torch.isfinite(logits[[0, 2]]).all()
    cache.scrub(1)
    again = Row(prompts[1], slot=1)
    run(model, cache, [again])
    assert_same_tokens([(again.answer, again.prompt.golden)])


def test_a_slot_goes_on_elsewhere_after_copy_save_and_restore(
    model: VisionLanguageModel, prompts: list[Prompt]
) -> None:
    for prompt in prompts:
        cache = model.new_cache(4, 150)
        row = Row(prompt, slot=3)
        for _ in range(4):
            step(model, cache, [row])
        held = list(row.answer)
        cache.copy(3, 0, row.cached)
        snapshot = cache.save(3, row.cached)
        poison(cache, [1, 2, 3])
        cache.restore(2, snapshot)
        moved = [Row(prompt, slot, cached=row.cached, answer=list(held)) for slot in (0, 2)]
        run(model, cache, moved)
        assert_same_tokens((each.answer, prompt.golden) for each in moved)


def test_a_truncated_slot_takes_another_answer_and_comes_back(
    model: VisionLanguageModel, prompts: list[Prompt]
) -> None:
    for prompt in prompts:
        cache = model.new_cache(1, 150)
        row = Row(prompt, slot=0)
        run(model, cache, [row])
        for length in (prompt.length + 2, prompt.length - 1, 5, 0):
            assert cache.truncate(0, length)
            kept = max(0, length - prompt.length + 1)
            row = Row(prompt, slot=0, chunk=11, cached=length, answer=row.answer[:kept])
            if row.cached == 0:
                cache.claim(0)
            while not row.done:
                step(model, cache, [row])
            assert_same_tokens([(row.answer, prompt.golden)])


def test_forward_refuses_rows_that_do_not_fit_before_it_writes(
    model: VisionLanguageModel, prompts: list[Prompt], golden: Callable[[str], Reference]
) -> None:
    cache = model.new_cache(2, prompts[0].length - 1)
    before = [tensor.clone() for tensor in tensors(cache)]
    with pytest.raises(ValueError, match="does not fit a slot"):
        step(model, cache, [Row(prompts[0], slot=0)])
    with pytest.raises(ValueError, match="no slot -1"):
        step(model, cache, [Row(prompts[0], slot=-1, chunk=4)])
    with pytest.raises(ValueError, match="slots of their own"):
        step(model, cache, [Row(prompts[0], slot=1, chunk=4), Row(prompts[1], slot=1, chunk=4)])
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), before, strict=True))
