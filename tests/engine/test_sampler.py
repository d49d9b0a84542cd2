"""The sampler against a plain oracle, against the exact distribution, and against its own batch."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kaminari.engine.noise import uniform
from kaminari.engine.params import SamplingParams
from kaminari.engine.sampler import MAX_VOCAB, filtered_weights, sample
from kaminari.engine.sampling_table import SamplingTable, SamplingTensors
from kaminari.model.kernels.native.build import allow_native, native_kernels

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["native", "torch"], scope="module", autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param and native_kernels().library is None:
        pytest.skip(native_kernels().reason)
    allow_native(request.param)
    yield
    allow_native(True)


GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()


def tensors(params: Sequence[SamplingParams], vocab_size: int) -> SamplingTensors:
    table = SamplingTable(len(params), vocab_size, CPU)
    for slot, row in enumerate(params):
        table.set(slot, row)
    return table.rows(range(len(params)), torch.arange(len(params)))


def probabilities(logits: Tensor, params: SamplingParams, mask: Tensor | None = None) -> list[float]:
    """What the sampler draws one row from, as floats that sum to 1."""
    allowed = logits if mask is None else logits.masked_fill(~mask, -math.inf)
    weights = filtered_weights(allowed[None].float(), tensors([params], len(logits)))[0].tolist()
    return [weight / sum(weights) for weight in weights]


def oracle(
    logits: Sequence[float], params: SamplingParams, allowed: Sequence[bool]
) -> tuple[list[float], bool]:
    """The same in plain Python: temperature, top-k, top-p, min-p, one after the other.

    Also returns whether no filter's border was so close that rounding decides it.
    """
    clear = True
    top = max(x for x, ok in zip(logits, allowed, strict=True) if ok)
    mass = {
        i: math.exp((x - top) / params.temperature)
        for i, (x, ok) in enumerate(zip(logits, allowed, strict=True))
        if ok
    }
    order = sorted(mass, key=lambda i: (-mass[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    total = sum(mass[i] for i in order)
    kept, reached = [], 0.0
    for i in order:
        if params.top_p < 1.0 and reached >= params.top_p * total:
            break
        kept.append(i)
        reached += mass[i]
        clear = clear and (params.top_p == 1.0 or abs(reached / total - params.top_p) > 1e-6)
    clear = clear and all(abs(mass[i] - params.min_p) > 1e-6 or mass[i] == 1.0 for i in kept)
    kept = [i for i in kept if mass[i] >= params.min_p]
    total = sum(mass[i] for i in kept)
    return [mass[i] / total if i in kept else 0.0 for i in range(len(logits))], clear


# Steps of 1/4 are exact in bfloat16 and make many ties.
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=80)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-5, 0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, 40, 64, 65, 10**9]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.8, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
)


@settings(max_examples=300, deadline=None)
@given(LOGITS, PARAMS, st.data())
def test_filters_equal_the_oracle(logits: list[float], params: SamplingParams, data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    allowed[data.draw(st.integers(0, len(logits) - 1))] = True
    expected, clear = oracle(logits, params, allowed)
    assume(clear)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    got = probabilities(torch.tensor(logits, dtype=dtype), params, torch.tensor(allowed))
    assert got == pytest.approx(expected, abs=2e-6)
    # Below 2**-42 of the likeliest, a token's weight is 0: it may be missing, never be added.
    assert all(want > 0 for have, want in zip(got, expected, strict=True) if have)
    assert all(have > 0 for have, want in zip(got, expected, strict=True) if want > 1e-11)


@settings(max_examples=150, deadline=None)
@given(LOGITS, PARAMS, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_first_token_whose_mass_exceeds_the_noise(
    logits: list[float], params: SamplingParams, noise: float
) -> None:
    row = torch.tensor(logits)
    weights = filtered_weights(row[None], tensors([params], len(logits)))[0].tolist()
    drawn = sample(
        row[None], tensors([params], len(logits)), noise=torch.tensor([noise], dtype=torch.float64)
    )
    token = int(drawn.ids[0])
    before, total = sum(weights[:token]), sum(weights)
    assert weights[token] > 0
    # The product of noise and total is rounded to 53 bits.
    slack = total * 2**-52
    assert before - slack <= noise * total <= before + weights[token] + slack


def test_the_draws_follow_the_filtered_distribution() -> None:
    draws, vocab = 20_000, 60
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 2
    noise = torch.tensor([uniform(11, 0, position) for position in range(draws)], dtype=torch.float64)
    for params in (
        PLAIN,
        SamplingParams(temperature=0.6, top_k=20),
        SamplingParams(temperature=1.5, top_p=0.9),
        SamplingParams(temperature=1.2, min_p=0.05),
        SamplingParams(temperature=1.3, top_k=30, top_p=0.95, min_p=0.02),
    ):
        expected, _ = oracle(logits.tolist(), params, [True] * vocab)
        rows = tensors([params], vocab)
        row_of_all = SamplingTensors(
            *(t.expand(draws) for t in (rows.temperature, rows.top_k, rows.top_p, rows.min_p)),
            all_greedy=False,
            sort_width=rows.sort_width,
        )
        ids = sample(logits.expand(draws, vocab), row_of_all, noise=noise).ids
        counts = torch.bincount(ids, minlength=vocab).tolist()
        assert all(count == 0 for count, p in zip(counts, expected, strict=True) if p == 0)
        cells = [(count, p * draws) for count, p in zip(counts, expected, strict=True) if p > 0]
        chi_square = sum((count - mean) ** 2 / mean for count, mean in cells)
        freedom = len(cells) - 1
        # Five standard deviations above the mean of a chi-square; the noise is fixed.
        assert chi_square < freedom + 5 * math.sqrt(2 * freedom), params


MIXED = [
    PLAIN,
    GREEDY,
    SamplingParams(temperature=0.3),
    SamplingParams(top_k=5),
    SamplingParams(temperature=2.0, top_p=0.7),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.9, top_k=70, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=1e-5),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 7, 758, 4099])
def test_a_row_is_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for _ in range(6):
        logits = (torch.randn(len(MIXED), vocab, generator=generator) * 4).to(dtype)
        noise = torch.rand(len(MIXED), generator=generator, dtype=torch.float64)
        order = torch.randperm(len(MIXED), generator=generator).tolist()
        batch = sample(
            logits[order], tensors([MIXED[i] for i in order], vocab), noise=noise[order], logprobs=True
        )
        weights = filtered_weights(logits[order].float(), tensors([MIXED[i] for i in order], vocab))
        assert batch.logprobs is not None
        for place, row in enumerate(order):
            params = tensors([MIXED[row]], vocab)
            alone = sample(logits[row : row + 1], params, noise=noise[row : row + 1], logprobs=True)
            assert alone.logprobs is not None
            assert batch.ids[place] == alone.ids[0]
            assert torch.equal(batch.logprobs[place], alone.logprobs[0])
            if not MIXED[row].greedy:
                assert torch.equal(filtered_weights(logits[row : row + 1].float(), params)[0], weights[place])


def test_a_neighbour_s_narrow_sort_does_not_cut_a_row_without_filters() -> None:
    logits = torch.zeros(2, 500)
    params = tensors([SamplingParams(top_k=3), PLAIN], 500)
    assert params.sort_width < 500
    assert (filtered_weights(logits, params) > 0).sum(-1).tolist() == [3, 500]


def test_a_poisoned_neighbour_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(MIXED), 300, generator=generator)
    noise = torch.rand(len(MIXED), generator=generator, dtype=torch.float64)
    params = tensors(MIXED, 300)
    clean = sample(logits, params, noise=noise, logprobs=True)
    assert clean.logprobs is not None
    for poison in (math.nan, math.inf, -math.inf):
        for row in range(len(MIXED)):
            dirty = logits.clone()
            dirty[row, 17] = poison
            drawn = sample(dirty, params, noise=noise, logprobs=True)
            assert drawn.logprobs is not None
            others = torch.arange(len(MIXED)) != row
            assert drawn.finite.tolist() == others.tolist()
            assert torch.equal(drawn.ids[others], clean.ids[others])
            assert torch.equal(drawn.logprobs[others], clean.logprobs[others])
            assert drawn.ids[row] == 0
            assert drawn.logprobs[row] == 0


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", MIXED)
def test_a_row_with_nothing_finite_is_flagged_and_harmless(fill: float, params: SamplingParams) -> None:
    drawn = sample(torch.full((1, 100), fill), tensors([params], 100), noise=torch.tensor([0.5]))
    assert drawn.ids.tolist() == [0]
    assert drawn.finite.tolist() == [False]


@settings(max_examples=100, deadline=None)
@given(LOGITS, st.data())
def test_greedy_takes_the_first_largest_allowed_logit(logits: list[float], data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    allowed[data.draw(st.integers(0, len(logits) - 1))] = True
    best = max(range(len(logits)), key=lambda i: (allowed[i], logits[i], -i))
    row, mask = torch.tensor([logits]), torch.tensor([allowed])
    fast = sample(row, tensors([GREEDY], len(logits)), mask)
    mixed = sample(
        row.expand(2, -1), tensors([PLAIN, GREEDY], len(logits)), mask.expand(2, -1), torch.tensor([0.9, 0.9])
    )
    assert fast.ids.tolist() == [best]
    assert mixed.ids[1] == best
    assert allowed[int(mixed.ids[0])]


def test_top_k_of_one_is_greedy_also_where_logits_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, -2.0]])
    params = tensors([SamplingParams(top_k=1)], 5)
    for noise in (0.0, 0.5, 0.999):
        assert sample(logits, params, noise=torch.tensor([noise])).ids.tolist() == [1]


def test_ties_at_a_border_go_to_the_lower_ids() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    assert [p > 0 for p in probabilities(logits, SamplingParams(top_k=2))] == [
        False,
        True,
        True,
        False,
        False,
    ]
    flat = torch.zeros(8)
    assert [p > 0 for p in probabilities(flat, SamplingParams(top_p=0.3))] == [True] * 3 + [False] * 5
    # Exactly reached is reached.
    assert [p > 0 for p in probabilities(flat, SamplingParams(top_p=0.25))] == [True] * 2 + [False] * 6


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert probabilities(logits, SamplingParams(top_k=2, top_p=0.55)) == pytest.approx([1, 0, 0, 0])
    assert probabilities(logits, SamplingParams(top_p=0.55)) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_min_p_is_relative_to_the_largest_probability() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert probabilities(logits, SamplingParams(min_p=0.25)) == pytest.approx([50 / 95, 30 / 95, 15 / 95, 0])
    assert probabilities(logits, SamplingParams(min_p=1.0)) == pytest.approx([1, 0, 0, 0])


def test_temperature_comes_first() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    flat = [p**0.5 for p in (0.6, 0.3, 0.1)]
    assert probabilities(logits, SamplingParams(temperature=2.0)) == pytest.approx(
        [p / sum(flat) for p in flat], rel=1e-6
    )
    # 0.6 alone reaches 0.55 before the temperature, and not after it.
    assert probabilities(logits, SamplingParams(temperature=2.0, top_p=0.55))[1] > 0
    assert probabilities(logits, SamplingParams(top_p=0.55))[1] == 0


def test_noise_next_to_one_takes_the_last_possible_token_never_an_impossible_one() -> None:
    logits = torch.tensor([[0.0, 0.0, -1e4, -1e4]]).expand(2, 4)
    largest = 1 - 2**-53
    params = tensors([PLAIN, PLAIN], 4)
    drawn = sample(logits, params, noise=torch.tensor([largest, 0.0], dtype=torch.float64))
    assert drawn.ids.tolist() == [1, 0]
    # In float32 that noise is 1.
    assert sample(logits, params, noise=torch.tensor([largest, 0.5])).ids.tolist() == [1, 1]
    first_impossible = torch.tensor([[-1e4, 0.0, 0.0]])
    assert sample(first_impossible, tensors([PLAIN], 3), noise=torch.zeros(1)).ids.tolist() == [1]


def test_the_numbers_of_a_large_flat_vocabulary_do_not_overflow() -> None:
    vocab = MAX_VOCAB
    drawn = sample(
        torch.zeros(3, vocab),
        tensors([PLAIN, SamplingParams(top_p=0.5), SamplingParams(top_k=1000)], vocab),
        noise=torch.tensor([1 - 2**-53] * 3, dtype=torch.float64),
    )
    assert drawn.ids.tolist() == [vocab - 1, vocab // 2 - 1, 999]


def test_extreme_finite_logits_stay_finite() -> None:
    limit = torch.finfo(torch.float32).max
    logits = torch.tensor([[-limit, limit, 0.0]]).expand(3, 3)
    params = tensors([SamplingParams(temperature=1e-5), PLAIN, GREEDY], 3)
    drawn = sample(logits, params, noise=torch.tensor([0.1, 0.9, 0.5]), logprobs=True)
    assert drawn.ids.tolist() == [1, 1, 1]
    assert drawn.finite.all()
    assert drawn.logprobs is not None
    assert drawn.logprobs.tolist() == [0, 0, 0]


def test_logprobs_are_of_the_raw_distribution_and_only_where_asked_for() -> None:
    logits = torch.randn(len(MIXED), 50, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(len(MIXED), 50, generator=torch.Generator().manual_seed(2)) < 0.5
    noise = torch.full((len(MIXED),), 0.4)
    params = tensors(MIXED, 50)
    assert sample(logits, params, mask, noise).logprobs is None
    drawn = sample(logits, params, mask, noise, logprobs=True)
    assert drawn.logprobs is not None
    assert drawn.logprobs.dtype == torch.float32
    for row, (token, logprob) in enumerate(zip(drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True)):
        total = sum(math.exp(x) for x in logits[row].tolist())
        assert logprob == pytest.approx(logits[row, token].item() - math.log(total), abs=1e-5)
        assert mask[row, token]


def test_a_mask_that_allows_nothing_is_flagged() -> None:
    mask = torch.tensor([[True, False, False], [False, False, False], [False, False, False]])
    params = tensors([PLAIN, PLAIN, GREEDY], 3)
    drawn = sample(torch.zeros(3, 3), params, mask, torch.tensor([0.9, 0.9, 0.9]), logprobs=True)
    assert drawn.ids.tolist() == [0, 0, 0]
    assert drawn.finite.tolist() == [True, False, False]


def test_a_mask_that_allows_only_unlikely_tokens_still_draws_them() -> None:
    logits = torch.tensor([[1e4, 0.0, 0.0]])
    mask = torch.tensor([[False, True, True]])
    params = tensors([SamplingParams(top_p=0.99)], 3)
    assert [int(sample(logits, params, mask, torch.tensor([u])).ids) for u in (0.2, 0.8)] == [1, 2]


def test_the_inputs_are_left_alone() -> None:
    logits = torch.randn(2, 40)
    mask = torch.rand(2, 40) < 0.8
    copies = logits.clone(), mask.clone()
    sample(
        logits, tensors([SamplingParams(top_k=3, min_p=0.1), GREEDY], 40), mask, torch.rand(2), logprobs=True
    )
    assert torch.equal(logits, copies[0])
    assert torch.equal(mask, copies[1])


def test_a_step_without_rows_draws_nothing() -> None:
    drawn = sample(torch.empty(0, 9), tensors([], 9), logprobs=True)
    assert drawn.ids.shape == drawn.finite.shape == (0,)
    assert drawn.ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("logits", "mask", "noise", "word"),
    [
        (torch.zeros(4), None, torch.zeros(2), "logits"),
        (torch.zeros(2, 4, dtype=torch.int64), None, torch.zeros(2), "floating"),
        (torch.zeros(2, 0), None, torch.zeros(2), "vocabulary"),
        (torch.zeros(1).expand(2, MAX_VOCAB + 1), None, torch.zeros(2), "vocabulary"),
        (torch.zeros(3, 4), None, torch.zeros(3), "rows of parameters"),
        (torch.zeros(2, 4), torch.ones(2, 5, dtype=torch.bool), torch.zeros(2), "mask"),
        (torch.zeros(2, 4), torch.ones(2, 4), torch.zeros(2), "mask"),
        (torch.zeros(2, 4), None, torch.zeros(3), "noise"),
        (torch.zeros(2, 4), None, None, "noise"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    logits: Tensor, mask: Tensor | None, noise: Tensor | None, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        sample(logits, tensors([PLAIN, GREEDY], 4), mask, noise)


@pytest.mark.parametrize(
    "params", [[GREEDY] * 2, [PLAIN] * 2, [SamplingParams(top_k=3), SamplingParams(top_p=0.5)]]
)
def test_the_host_never_waits_for_a_value(params: list[SamplingParams]) -> None:
    """Tensors on the meta device have no values: reading one on the host would raise."""
    meta = torch.device("meta")
    table = SamplingTable(2, 500, meta)
    for slot, row in enumerate(params):
        table.set(slot, row)
    drawn = sample(
        torch.empty(2, 500, device=meta),
        table.rows([0, 1], torch.empty(2, dtype=torch.int64, device=meta)),
        torch.empty(2, 500, dtype=torch.bool, device=meta),
        torch.empty(2, device=meta),
        logprobs=True,
    )
    assert drawn.ids.shape == drawn.finite.shape == (2,)
