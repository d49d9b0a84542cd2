"""Slots and context against bytes: what is promised fits, what is refused says what would fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kaminari.engine.capacity import (
    SMALL_AUTO_SLOTS,
    Capacity,
    CapacityError,
    format_bytes,
    plan_capacity,
    slot_bytes,
    usable_memory,
)
from kaminari.engine.loading import load_model, plan_model
from kaminari.engine.runner import Runner
from kaminari.engine.step_graphs import ProgramRecorder
from kaminari.model.family import Footprint
from tests.engine.harness import settings

GIB = 2**30
# 1 GiB of weights; a slot of 1024 tokens takes 64 MiB and 1 MiB
MODEL = Footprint(weights=GIB, cache_per_token=2**16, cache_per_slot=2**20)


def plan(memory: int, slots: int | str = "auto", context: int | str = "auto", most: int = 4096) -> Capacity:
    return plan_capacity(MODEL, slots=slots, context=context, max_context=most, memory=memory)


def test_auto_takes_eight_slots_where_they_fit() -> None:
    capacity = plan(100 * GIB, most=262144)
    assert (capacity.slots, capacity.context) == (8, 8192)
    assert capacity.weight_bytes == GIB
    assert capacity.cache_bytes == 8 * (8192 * 2**16 + 2**20)


def test_auto_takes_more_slots_where_they_are_small() -> None:
    def slots(per_token: int, memory: int = 100 * GIB) -> int:
        small = Footprint(weights=GIB, cache_per_token=per_token)
        return plan_capacity(small, slots="auto", context=1024, max_context=1024, memory=memory).slots

    assert ProgramRecorder.most_rows >= SMALL_AUTO_SLOTS
    small = 256 * 2**20 // SMALL_AUTO_SLOTS // 1024
    assert slots(small) == slots(1) == SMALL_AUTO_SLOTS
    assert slots(small + 1) == SMALL_AUTO_SLOTS - 1
    assert slots(2 * small) == slots(3 * small) == 8
    assert slots(small, GIB + 10 * small * 1024) == 10


def test_auto_context_is_no_more_than_the_checkpoint_allows() -> None:
    assert plan(100 * GIB, most=100).context == 100


def test_auto_slots_are_as_many_as_fit() -> None:
    per_slot = slot_bytes(MODEL, 1024)
    for fitting in range(1, 9):
        assert plan(GIB + fitting * per_slot, context=1024).slots == fitting
        assert plan(GIB + (fitting + 1) * per_slot - 1, context=1024).slots == fitting


def test_wishes_are_met_exactly() -> None:
    per_slot = slot_bytes(MODEL, 1024)
    assert plan(GIB + 20 * per_slot, slots=20, context=1024).slots == 20
    with pytest.raises(
        CapacityError, match=r"not enough memory for 20 slots.*19 slots of 1024 tokens would fit"
    ):
        plan(GIB + 20 * per_slot - 1, slots=20, context=1024)


def test_one_slot_does_not_fit() -> None:
    message = refusal(GIB + 32 * 2**20)
    assert message.startswith("not enough memory for one slot: weights 1.0 GiB and one slot of 4096 tokens")
    assert "need 1.3 GiB, and 1.0 GiB is usable" in message
    assert "one slot of 496 tokens would fit" in message


def test_what_is_said_to_fit_fits() -> None:
    memory = GIB + 32 * 2**20
    found = re.search(r"one slot of (\d+) tokens would fit", refusal(memory))
    assert found is not None
    assert plan(memory, context=int(found[1])).slots == 1
    with pytest.raises(CapacityError):
        plan(memory, context=int(found[1]) + 1)


def test_tables_beside_the_cache_count() -> None:
    tables = 2**25
    per_slot = slot_bytes(MODEL, 1024) + tables

    def planned(memory: int, slots: int | str = "auto") -> Capacity:
        return plan_capacity(MODEL, slots=slots, context=1024, max_context=4096, memory=memory, tables=tables)

    capacity = planned(GIB + 3 * per_slot)
    assert (capacity.slots, capacity.table_bytes) == (3, 3 * tables)
    assert capacity.cache_bytes == 3 * slot_bytes(MODEL, 1024)
    assert planned(GIB + 3 * per_slot - 1).slots == 2
    with pytest.raises(CapacityError, match="2 slots of 1024 tokens would fit"):
        planned(GIB + 3 * per_slot - 1, slots=3)


def test_a_plan_counts_what_the_runner_allocates(
    checkpoint: Callable[[str], Path],
) -> None:
    for variant in ("tied-grouped", "qwen3_5", "minicpm_v"):
        chosen = settings(checkpoint(variant), slots=3, context=64)
        planned, loaded = plan_model(chosen).capacity, load_model(chosen)
        runner = Runner(loaded.model, loaded.info.slots, loaded.info.context, loaded.end_token_ids)
        tables = [*vars(runner._logits).values(), *vars(runner._sampling).values()]
        assert sum(each.nbytes for each in tables if isinstance(each, Tensor)) == planned.table_bytes
        assert runner.cache.nbytes() == planned.cache_bytes


def test_not_even_the_weights_fit() -> None:
    assert "not even the weights fit" in refusal(GIB - 1)
    assert "not even the weights fit" in refusal(0)


def test_the_weights_fit_and_no_useful_context_does() -> None:
    assert "no context would fit beside the weights" in refusal(GIB + 2**20 + 15 * 2**16)


def test_a_context_above_the_checkpoint_is_refused() -> None:
    with pytest.raises(CapacityError, match="5000 tokens is more than this model's 4096"):
        plan(100 * GIB, context=5000)
    assert plan(100 * GIB, context=4096).context == 4096


def test_a_model_without_cache_still_has_slots() -> None:
    free = Footprint(weights=10, cache_per_token=0)
    assert (
        plan_capacity(free, slots="auto", context="auto", max_context=64, memory=10).slots == SMALL_AUTO_SLOTS
    )
    with pytest.raises(CapacityError):
        plan_capacity(free, slots="auto", context="auto", max_context=64, memory=9)


def refusal(memory: int) -> str:
    with pytest.raises(CapacityError) as caught:
        plan(memory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(
    weights=st.integers(0, 10**6),
    per_token=st.integers(0, 1000),
    per_slot=st.integers(0, 1000),
    slots=st.one_of(st.just("auto"), st.integers(1, 256)),
    context=st.one_of(st.just("auto"), st.integers(16, 20000)),
    most=st.integers(16, 20000),
    memory=st.integers(0, 10**8),
)
def test_a_plan_fits_or_is_refused(
    weights: int, per_token: int, per_slot: int, slots: int | str, context: int | str, most: int, memory: int
) -> None:
    footprint = Footprint(weights, per_token, per_slot)
    needed = weights + slot_bytes(footprint, min(most, 8192) if context == "auto" else context) * (
        1 if slots == "auto" else slots
    )
    possible = needed <= memory and (context == "auto" or context <= most)
    if not possible:
        with pytest.raises(CapacityError):
            plan_capacity(footprint, slots=slots, context=context, max_context=most, memory=memory)
        return
    capacity = plan_capacity(footprint, slots=slots, context=context, max_context=most, memory=memory)
    assert capacity.weight_bytes + capacity.cache_bytes <= memory
    assert slots in ("auto", capacity.slots)
    assert context in ("auto", capacity.context)
    assert capacity.slots >= 1
    if slots == "auto" and capacity.slots < 8:
        assert capacity.weight_bytes + capacity.cache_bytes + slot_bytes(footprint, capacity.context) > memory


def test_a_limit_only_lowers() -> None:
    assert usable_memory(1000, None) == 900
    assert usable_memory(1000, 500) == 500
    assert usable_memory(1000, 5000) == 900


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**19, "1.5 MiB"),
        (GIB, "1.0 GiB"),
        (-GIB, "-1.0 GiB"),
        (2**42, "4.0 TiB"),
        (2**62, "4194304.0 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
