"""Parameters by slot: what the device holds, and what the host knows without asking it."""

import pytest
import torch

from kaminari.engine.params import SamplingParams
from kaminari.engine.sampling_table import SamplingTable

CPU = torch.device("cpu")
VOCAB = 1000


def width(*params: SamplingParams) -> int:
    table = SamplingTable(len(params), VOCAB, CPU)
    for slot, row in enumerate(params):
        table.set(slot, row)
    return table.rows(range(len(params)), torch.arange(len(params))).sort_width


def test_rows_come_in_the_order_of_the_slots() -> None:
    table = SamplingTable(4, VOCAB, CPU)
    table.set(3, SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1))
    table.set(1, SamplingParams(temperature=0.0))
    rows = table.rows([3, 1], torch.tensor([3, 1]))
    assert rows.temperature.tolist() == [0.5, 0.0]
    assert rows.top_k.tolist() == [7, 0]
    assert rows.top_p.tolist() == [0.9, 1.0]
    assert rows.min_p.tolist() == [0.1, 0.0]
    assert not rows.all_greedy
    assert table.rows([1], torch.tensor([1])).all_greedy


def test_a_new_owner_inherits_nothing() -> None:
    table = SamplingTable(1, VOCAB, CPU)
    table.set(0, SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1))
    table.set(0, SamplingParams())
    rows = table.rows([0], torch.tensor([0]))
    assert [t.item() for t in (rows.temperature, rows.top_k, rows.top_p, rows.min_p)] == [1, 0, 1, 0]
    assert rows.sort_width == 0


def test_temperature_is_greedy_only_below_the_border() -> None:
    table = SamplingTable(2, VOCAB, CPU)
    table.set(0, SamplingParams(temperature=0.99e-5))
    table.set(1, SamplingParams(temperature=1e-5))
    rows = table.rows([0, 1], torch.tensor([0, 1]))
    assert rows.temperature.tolist() == [0.0, 1e-5]
    assert not rows.all_greedy


def test_nothing_is_sorted_where_no_row_needs_an_order() -> None:
    assert width(SamplingParams(), SamplingParams(min_p=0.2), SamplingParams(temperature=0, top_k=5)) == 0
    assert width(SamplingParams(top_k=VOCAB)) == 0
    assert width(SamplingParams(top_k=10**12)) == 0
    assert width(SamplingParams(top_k=-1)) == 0


def test_the_sort_is_as_wide_as_the_widest_row_needs_in_few_steps() -> None:
    assert width(SamplingParams(top_k=1)) == width(SamplingParams(top_k=64)) == 64
    assert width(SamplingParams(top_k=65), SamplingParams(top_k=3)) == 128
    assert width(SamplingParams(top_k=999)) == VOCAB
    assert width(SamplingParams(top_k=20, top_p=0.5)) == 64
    assert width(SamplingParams(top_k=20), SamplingParams(top_p=0.5)) == VOCAB


def test_a_slot_that_was_never_set_is_refused() -> None:
    table = SamplingTable(2, VOCAB, CPU)
    table.set(0, SamplingParams())
    with pytest.raises(ValueError, match=r"\[1\]"):
        table.rows([0, 1], torch.tensor([0, 1]))
