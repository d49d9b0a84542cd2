"""Recording and feeding modules, on a model that is small enough to check by hand."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kaminari.model.family import CheckpointError
from kaminari.model.stages import FAMILIES, Stage, find_stages
from kaminari.verify.prompts import Prompt, built_in
from kaminari.verify.recording import StageRecord, as_rows, recorded
from kaminari.verify.reference import record_reference


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


DOUBLE, TRIPLE = Scale(2), Scale(3)
STAGES = (Stage("double", DOUBLE), Stage("triple", TRIPLE))
ONE = torch.ones(1, 2, 3)


def record(value: float, rows: int = 2) -> StageRecord:
    return StageRecord(torch.full((rows, 3), value), torch.empty(0))


def test_inputs_and_outputs_are_recorded_as_rows() -> None:
    with recorded(STAGES) as seen:
        TRIPLE(x=DOUBLE(ONE))
    assert list(seen) == ["double", "triple"]
    assert torch.equal(seen["triple"].entering, torch.full((2, 3), 2.0))
    assert torch.equal(seen["triple"].output, torch.full((2, 3), 6.0))


def test_a_stage_that_is_fed_notes_its_own_input_and_the_output_of_the_other() -> None:
    with recorded(STAGES, {"triple": record(10)}) as seen:
        assert torch.equal(TRIPLE(x=DOUBLE(ONE)), 30 * ONE)
    assert torch.equal(seen["triple"].entering, torch.full((2, 3), 2.0))
    assert torch.equal(seen["triple"].output, torch.full((2, 3), 30.0))


def test_rows_are_fed_in_order_over_several_calls() -> None:
    fed = StageRecord(torch.arange(6.0).reshape(2, 3), torch.empty(0))
    with recorded(STAGES, {"double": fed}) as seen:
        for _ in range(2):
            DOUBLE(torch.ones(1, 3))
    assert torch.equal(seen["double"].output, 2 * fed.entering)
    assert seen["double"].entering.shape == (2, 3)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_another_count_are_recorded_and_fail_by_their_shape(rows: int) -> None:
    with recorded(STAGES, {"double": record(10, rows=2)}) as seen:
        DOUBLE(torch.ones(rows, 3))
    assert seen["double"].output.shape[0] == rows


def test_a_stage_that_may_not_be_fed_is_not() -> None:
    with recorded([Stage("double", DOUBLE, fed=False)], {"double": record(10)}) as seen:
        DOUBLE(ONE)
    assert torch.equal(seen["double"].output, torch.full((2, 3), 2.0))
    assert not seen["double"].entering.numel()


def test_no_hook_stays_behind_even_after_a_fault() -> None:
    def fail() -> None:
        with recorded(STAGES):
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    for module in (DOUBLE, TRIPLE):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_rows_of_a_list_and_the_last_of_them() -> None:
    rows = as_rows([torch.ones(1, 2, 3), torch.zeros(4, 3)])
    assert rows.shape == (6, 3)
    last = StageRecord(rows, 2 * rows).last(5)
    assert torch.equal(last.entering, rows[1:])
    assert torch.equal(last.output, 2 * rows[1:])


def test_a_record_does_not_follow_what_happens_later() -> None:
    x = torch.ones(2, 3)
    with recorded(STAGES) as seen:
        DOUBLE(x)
    x.zero_()
    assert torch.equal(seen["double"].entering, torch.ones(2, 3))


def test_the_reference_is_let_go_of(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two models must never be in memory at once."""
    stages = find_stages(tiny_checkpoint)
    alive: list[weakref.ref[Any]] = []

    class Watching:
        def load_reference(self, folder: Path, dtype: torch.dtype) -> Any:
            reference = stages.load_reference(folder, dtype)
            alive.append(weakref.ref(reference.model))
            return reference

    monkeypatch.setattr("kaminari.verify.reference.find_stages", lambda _: Watching())
    gc.disable()
    try:
        record_reference(tiny_checkpoint, [Prompt("p", "hi")], torch.float32, tokens=1)
    finally:
        gc.enable()
    assert alive[0]() is None


def test_the_built_in_pictures_are_the_same_every_time_and_all_different() -> None:
    assert built_in() == built_in()
    pictures = [picture for prompt in built_in() for picture in prompt.pictures]
    assert len(set(pictures)) == len(pictures) == 3


def test_families_without_stages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "other"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="unsupported model_type 'other'"):
        find_stages(tmp_path)
    monkeypatch.setattr("kaminari.model.stages.FAMILIES", {**FAMILIES, "other": "kaminari.model"})
    monkeypatch.setitem(__import__("sys").modules, "kaminari.model.stages", None)
    with pytest.raises(CheckpointError, match="does not describe"):
        find_stages(tmp_path)
