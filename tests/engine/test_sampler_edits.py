"""Penalties, biases and a least length against a plain oracle, and against their own batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kaminari.engine.logit_edits import Barred, LogitEdits, bar, edit
from kaminari.engine.logit_table import LogitTable
from kaminari.engine.params import SamplingParams
from kaminari.engine.sampler import sample
from kaminari.engine.sampling_table import SamplingTable

CPU = torch.device("cpu")
VOCAB = 50
ENDS = frozenset({48, 49})
GREEDY = SamplingParams(temperature=0.0)


def oracle(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], made: Sequence[int]
) -> list[float]:
    """What is drawn from, in plain Python: repetition, frequency, presence, bias."""
    edited = []
    bias = dict(params.logit_bias)
    for token, logit in enumerate(logits):
        if token in prompt or token in made:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        count = made.count(token)
        logit -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        edited.append(logit + bias.get(token, 0.0))
    return edited


def table_of(rows: Sequence[tuple[SamplingParams, Sequence[int]]]) -> LogitTable:
    table = LogitTable(len(rows), VOCAB, len(ENDS), CPU)
    for slot, (params, prompt) in enumerate(rows):
        table.claim(slot, table.bring(params, prompt, params.ending(ENDS)))
    return table


def edits_of(
    params: SamplingParams, prompt: Sequence[int] = (), made: Sequence[int] = ()
) -> LogitEdits | None:
    table, slot = table_of([(params, prompt)]), torch.tensor([0])
    for token in made:
        table.record([0], slot, torch.tensor([token]))
    return table.rows([0], slot, [len(made)])


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=30)
LOGITS = st.lists(st.integers(-80, 80).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    presence_penalty=st.sampled_from([-2.0, -0.3, 0.0, 1.1, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, -0.7, 0.0, 0.4, 2.0]),
    repetition_penalty=st.sampled_from([0.01, 0.8, 1.0, 1.3, 100.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=16), max_size=9).map(
        lambda bias: tuple(bias.items())
    ),
    min_tokens=st.sampled_from([0, 1, 7]),
    stop_token_ids=st.sampled_from([(), (3,), (0, 1, 2)]),
)


@settings(max_examples=300, deadline=None)
@given(LOGITS, PARAMS, TOKENS, TOKENS)
def test_edits_equal_the_oracle(
    logits: list[float], params: SamplingParams, prompt: list[int], made: list[int]
) -> None:
    row = torch.tensor([logits])
    edits = edits_of(params, prompt, made)
    edited = row if edits is None else edit(row, edits)
    assert edited[0].tolist() == pytest.approx(oracle(logits, params, prompt, made), rel=1e-5, abs=1e-4)
    held = len(made) < params.min_tokens
    assert (edits is not None and edits.barred is not None) == held
    if edits is not None and edits.barred is not None:
        allowed = bar(None, edits.barred, VOCAB)[0].tolist()
        assert [not ok for ok in allowed] == [token in params.ending(ENDS) for token in range(VOCAB)]


MIXED: list[tuple[SamplingParams, list[int]]] = [
    (GREEDY, [1, 2]),
    (SamplingParams(frequency_penalty=1.5, presence_penalty=-0.5), [3]),
    (SamplingParams(repetition_penalty=1.7, temperature=0.7, top_k=9), [4, 5, 5, 6]),
    (SamplingParams(logit_bias=((0, -3.0), (7, 2.5))), []),
    (SamplingParams(min_tokens=9, stop_token_ids=(8,), temperature=0.0), [7]),
    (SamplingParams(min_tokens=2, ignore_eos=True), []),
    (SamplingParams(top_p=0.8), [9]),
]


def _draws(rows: Sequence[int], steps: int, logprobs: bool) -> dict[int, list[tuple[int, float, list[int]]]]:
    """Draw `steps` tokens of some rows of MIXED together; logits and noise belong to the row and the step."""
    wishes = [MIXED[row] for row in rows]
    table, index = table_of(wishes), torch.arange(len(rows))
    sampling = SamplingTable(len(rows), VOCAB, CPU)
    for slot, (params, _) in enumerate(wishes):
        sampling.set(slot, params)
    slots = range(len(rows))
    drawn: dict[int, list[tuple[int, float, list[int]]]] = {row: [] for row in rows}
    for step in range(steps):
        logits, noise = [], []
        for row in rows:
            generator = torch.Generator().manual_seed(100 * row + step)
            logits.append(torch.randn(VOCAB, generator=generator) * 2)
            noise.append(torch.rand(1, generator=generator, dtype=torch.float64))
        out = sample(
            torch.stack(logits),
            sampling.rows(slots, index),
            noise=torch.cat(noise),
            edits=table.rows(slots, index, [step] * len(rows)),
            logprobs=logprobs,
            top=5 if logprobs else 0,
        )
        table.record(slots, index, out.ids)
        for place, row in enumerate(rows):
            logprob = 0.0 if out.logprobs is None else float(out.logprobs[place])
            top = [] if out.top is None else out.top.ids[place].tolist()
            drawn[row].append((int(out.ids[place]), logprob, top))
    return drawn


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_row_is_the_same_bits_alone_and_in_any_batch(logprobs: bool) -> None:
    alone = {row: _draws([row], 12, logprobs)[row] for row in range(len(MIXED))}
    for seed in range(4):
        order = torch.randperm(len(MIXED), generator=torch.Generator().manual_seed(seed)).tolist()
        assert _draws(order, 12, logprobs) == alone
        assert _draws(order[:3], 12, logprobs) == {row: alone[row] for row in order[:3]}


def test_a_step_that_asks_for_nothing_is_left_alone() -> None:
    assert edits_of(GREEDY, [1, 2], [3]) is None
    assert edits_of(SamplingParams(stop_token_ids=(3,), logprobs=5), [1], [3]) is None
    assert edits_of(SamplingParams(min_tokens=2), made=[1, 2]) is None
    assert edits_of(SamplingParams(min_tokens=2, ignore_eos=True)) is None


def test_a_claim_clears_all_that_the_last_owner_left() -> None:
    everything = SamplingParams(
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        logit_bias=tuple((token, 5.0) for token in range(10)),
        min_tokens=5,
        stop_token_ids=(1, 2, 3),
    )
    table, slot = table_of([(everything, range(VOCAB))]), torch.tensor([0])
    table.record([0], slot, torch.tensor([4]))
    logits = torch.randn(1, VOCAB)
    for params in (
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(logit_bias=((0, 1.0),)),
        SamplingParams(min_tokens=1),
    ):
        table.claim(0, table.bring(params, [], params.ending(ENDS)))
        edits = table.rows([0], slot, [0])
        fresh = edits_of(params)
        assert edits is not None
        assert fresh is not None
        assert torch.equal(edit(logits, edits), edit(logits, fresh))
        if edits.barred is not None:
            assert bar(None, edits.barred, VOCAB)[0].logical_not().nonzero().flatten().tolist() == [48, 49]
    table.claim(0, table.bring(GREEDY, [], ENDS))
    assert table.rows([0], slot, [0]) is None


@pytest.mark.parametrize("bits", [[True, True, False], [False, True, False], [False, False, True]])
def test_a_barred_token_stays_where_a_grammar_leaves_no_other(bits: list[bool]) -> None:
    mask = torch.tensor([bits])
    allowed = bar(mask, Barred(torch.tensor([[1, 1]]), torch.tensor([True])), 3)[0].tolist()
    others = [bits[0], False, bits[2]]
    assert allowed == (others if any(others) else bits)


def test_edits_leave_finite_logits_finite() -> None:
    limit = torch.finfo(torch.float32).max
    params = SamplingParams(repetition_penalty=0.01, frequency_penalty=-2.0, logit_bias=((0, 100.0),))
    edits = edits_of(params, [0, 1], [0, 1])
    assert edits is not None
    row = torch.full((1, VOCAB), -1.0)
    row[0, 0], row[0, 1] = limit, -limit
    assert edit(row, edits).isfinite().all()
    assert row[0, 0] == limit


def test_the_likeliest_tokens_are_of_the_raw_distribution_and_ties_go_to_lower_ids() -> None:
    logits = torch.tensor([[0.0, 2.0, -0.0, 2.0, -1.0, -3.0, 1.0]])
    table = SamplingTable(1, 7, CPU)
    table.set(0, GREEDY)
    edits = LogitEdits(bias=None, barred=Barred(torch.tensor([[1]]), torch.tensor([True])))
    out = sample(logits, table.rows([0], torch.tensor([0])), edits=edits, logprobs=True, top=7)
    assert out.ids.tolist() == [3]
    assert out.top is not None
    assert out.top.ids[0].tolist() == [1, 3, 6, 0, 2, 4, 5]
    total = math.log(sum(math.exp(x) for x in logits[0].tolist()))
    expected = [float(logits[0, token]) - total for token in out.top.ids[0].tolist()]
    assert out.top.logprobs[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_host_never_waits_for_a_value() -> None:
    """Tensors on the meta device have no values: reading one on the host would raise."""
    meta = torch.device("meta")
    everything = SamplingParams(
        repetition_penalty=2.0, logit_bias=((1, 5.0),), min_tokens=5, stop_token_ids=(1,), logprobs=3
    )
    table, sampling = LogitTable(2, VOCAB, 2, meta), SamplingTable(2, VOCAB, meta)
    slots, index = [0, 1], torch.empty(2, dtype=torch.int64, device=meta)
    for slot, params in zip(slots, (everything, GREEDY), strict=True):
        sampling.set(slot, params)
        table.claim(slot, table.bring(params, [1, 2], params.ending(ENDS)))
    edits = table.rows(slots, index, [0, 0])
    assert edits is not None
    assert None not in (edits.penalties, edits.bias, edits.barred)
    logits: Tensor = torch.empty(2, VOCAB, device=meta)
    noise = torch.empty(2, device=meta)
    out = sample(logits, sampling.rows(slots, index), None, noise, edits, logprobs=True, top=3)
    table.record(slots, index, out.ids)
    assert out.ids.shape == (2,)
