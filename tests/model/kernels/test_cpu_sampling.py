"""What rows draw in C++ is what torch draws: the same whole numbers, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kaminari.engine import sampler
from kaminari.engine.params import SamplingParams
from kaminari.engine.sampler import filtered_weights, sample
from kaminari.engine.sampling_table import SamplingTable, SamplingTensors, filters
from kaminari.model import operators
from kaminari.model.kernels import cpu_sampling
from kaminari.model.kernels.native.build import allow_native, native_kernels

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


@pytest.fixture(params=[1, 3], autouse=True)
def more_threads(request: pytest.FixtureRequest, threads: None) -> None:
    torch.set_num_threads(request.param)


DTYPES = [torch.float32, torch.bfloat16]
VOCABULARIES = [1, 3, 17, 64, 1000, 40_000]
FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.8, top_k=20),
    SamplingParams(temperature=2.0, top_p=0.95),
    SamplingParams(temperature=0.1, top_k=3),
    SamplingParams(temperature=1.9, top_p=0.999, min_p=0.2),
    SamplingParams(top_k=10**6, top_p=1e-9),
    SamplingParams(top_k=1),
    SamplingParams(temperature=0.0),
]


def tensors(vocab: int, params: list[SamplingParams] = FILTERS) -> SamplingTensors:
    table = SamplingTable(len(params), vocab, torch.device("cpu"))
    for slot, row in enumerate(params):
        table.set(slot, row)
    return table.rows(range(len(params)), torch.arange(len(params)))


def logits_of(kind: str, rows: int, vocab: int) -> Tensor:
    chance = torch.Generator().manual_seed(vocab)
    wide = torch.randn(rows, vocab, generator=chance) * 6
    return {
        "wide": wide,
        "ties": (wide / 8).round(),
        "flat": torch.full((rows, vocab), -3.0),
        "masked": wide.masked_fill(torch.rand(rows, vocab, generator=chance) < 0.4, -torch.inf),
    }[kind]


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_takes_the_first_of_the_largest(dtype: torch.dtype, vocab: int) -> None:
    logits = torch.cat([logits_of("wide", 4, vocab), logits_of("ties", 4, vocab)]).to(dtype)
    assert torch.equal(cpu_sampling.greedy(logits), logits.argmax(-1))
    for odd in (torch.nan, torch.inf, -torch.inf):
        for place in {0, vocab // 2, vocab - 1}:
            struck = logits.clone()
            struck[3, place] = odd
            found = cpu_sampling.greedy(struck)
            assert found[3] == -1
            assert torch.equal(found[4:], logits[4:].argmax(-1))
    allow_native(False)
    try:
        assert torch.equal(operators.greedy(struck), found)
    finally:
        allow_native(True)


def test_greedy_reads_zeros_of_both_signs_as_equals() -> None:
    assert cpu_sampling.greedy(torch.tensor([[-0.0, 0.0], [0.0, -0.0], [-1.0, -0.0]])).tolist() == [0, 0, 1]


def test_drawn_ids_lie_where_the_next_step_finds_them() -> None:
    table = torch.full((5,), 9)
    cpu_sampling.leave(table, torch.tensor([4, 0, 2]), torch.tensor([7, -1, 3]))
    assert table.tolist() == [0, 9, 3, 9, 7]


@pytest.mark.parametrize("kind", ["wide", "ties", "flat", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_those_of_torch_s_exponential(dtype: torch.dtype, vocab: int, kind: str) -> None:
    logits = logits_of(kind, 3, vocab).to(dtype)
    temperature = torch.tensor([1.0, 0.3, 0.0])
    found = cpu_sampling.weigh(logits, temperature)
    by = torch.tensor([1.0, 0.3, 1.0])[:, None]
    wide = logits.double()
    exact = ((wide - wide.amax(-1, keepdim=True)) / by).exp().nan_to_num(0.0) * 2**42
    # the exponent is a float32, whose rounding weighs as much as it is large; the floor takes up to one
    close = (found - exact).abs() <= exact * 2e-5 + 1
    assert close.all()
    assert (found[exact == 0] == 0).all()
    assert (found.amax(-1) == 2**42).all() or kind == "masked"


@pytest.mark.parametrize("kind", ["wide", "ties", "flat", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_filters_and_draws_are_torch_s_to_the_last_unit(
    vocab: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same weights, which are whole numbers."""
    params = tensors(vocab)
    logits = logits_of(kind, len(FILTERS), vocab)
    noise = torch.rand(len(FILTERS), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = filtered_weights(logits, params)
    weights = cpu_sampling.weigh(logits, params.temperature)
    drawn = cpu_sampling.draw(ours, noise)
    ends = [cpu_sampling.draw(ours, torch.full_like(noise, end)) for end in (0.0, 1 - 2**-53)]
    allow_native(False)
    try:
        # torch's exponential is another one
        monkeypatch.setattr(sampler, "_weights", lambda *_: weights.clone())
        assert torch.equal(filtered_weights(logits, params), ours)
        assert torch.equal(sampler._draw(ours, noise), drawn)
        for end, found in zip((0.0, 1 - 2**-53), ends, strict=True):
            assert torch.equal(sampler._draw(ours, torch.full_like(noise, end)), found)
    finally:
        allow_native(True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    vocab = 3001
    logits = logits_of("wide", len(FILTERS), vocab).to(dtype)
    noise = torch.rand(len(FILTERS), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    whole = sample(logits, tensors(vocab), None, noise).ids
    for row, params in enumerate(FILTERS):
        alone = slice(row, row + 1)
        assert sample(logits[alone], tensors(vocab, [params]), None, noise[alone]).ids == whole[row]


@pytest.mark.parametrize("kind", ["wide", "ties", "flat"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_chooses_what_the_sampler_draws(dtype: torch.dtype, vocab: int, kind: str) -> None:
    logits = logits_of(kind, len(FILTERS), vocab).to(dtype)
    logits[3, vocab // 2] = torch.nan
    numbers = torch.tensor([filters(params, vocab) for params in FILTERS], dtype=torch.float64).T
    for seed in range(5):
        noise = torch.rand(len(FILTERS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        chosen = cpu_sampling.choose(logits, torch.cat([numbers, noise[None]]))
        drawn = sample(logits, tensors(vocab), None, noise)
        assert torch.equal(chosen, torch.where(drawn.finite, drawn.ids, -1))
    assert chosen[3] == -1
    assert torch.equal(
        cpu_sampling.choose(logits, torch.zeros(5, len(FILTERS), dtype=torch.float64)),
        cpu_sampling.greedy(logits),
    )


def test_what_does_not_fit_is_refused() -> None:
    ids, weights = torch.zeros(2, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)
    for wrong in (torch.zeros(2, 5, dtype=torch.float64), torch.zeros(5), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.greedy(wrong)
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.weigh(wrong, torch.ones(2))
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.choose(wrong, torch.zeros(5, 2, dtype=torch.float64))
    for few in (
        torch.zeros(5, 3, dtype=torch.float64),
        torch.zeros(4, 2, dtype=torch.float64),
        torch.zeros(5, 2),
    ):
        with pytest.raises(ValueError, match="for 2 rows to draw by"):
            cpu_sampling.choose(torch.zeros(2, 5), few)
    with pytest.raises(ValueError, match="temperatures for 2 rows"):
        cpu_sampling.weigh(torch.zeros(2, 5), torch.ones(3))
    with pytest.raises(ValueError, match="places"):
        cpu_sampling.leave(ids, torch.tensor([0, 2]), ids)
    with pytest.raises(ValueError, match="3 ids for 2 places"):
        cpu_sampling.leave(ids, ids, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="numbers for 2 rows"):
        cpu_sampling.draw(weights, torch.zeros(3))
    with pytest.raises(ValueError, match="numbers for 2 rows"):
        cpu_sampling.keep(weights, torch.zeros(2), torch.ones(1), torch.zeros(2))
    for wrong in (weights.float(), weights[0], weights.t()):
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.draw(wrong, torch.zeros(2))
