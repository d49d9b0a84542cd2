"""Noise is a pure function of (seed, choice, position), uniform, and never 1."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, Philox

from kaminari.engine.noise import uniform

SEEDS = st.integers(-(2**63), 2**63 - 1)
WORDS = st.integers(0, 2**64 - 1)


@given(SEEDS, WORDS, WORDS)
def test_every_key_gives_a_53_bit_number_below_one(seed: int, choice: int, position: int) -> None:
    value = uniform(seed, choice, position)
    assert 0.0 <= value < 1.0
    assert (value * 2**53).is_integer()
    assert value == uniform(seed, choice, position)


def test_the_order_of_draws_does_not_matter() -> None:
    keys = [(seed, choice, position) for seed in (-1, 0, 7) for choice in (0, 1) for position in range(20)]
    forward = {key: uniform(*key) for key in keys}
    random.Random(0).shuffle(keys)
    assert {key: uniform(*key) for key in keys} == forward
    assert len(set(forward.values())) == len(keys)


def test_neighbouring_keys_differ_in_each_part() -> None:
    assert len({uniform(0, 0, 0), uniform(1, 0, 0), uniform(0, 1, 0), uniform(0, 0, 1)}) == 4
    assert uniform(-1, 0, 0) != uniform(2**63 - 1, 0, 0)
    assert uniform(-(2**63), 0, 0) != uniform(0, 0, 0)


def test_the_values_are_fixed() -> None:
    """A seed that a user wrote down draws the same answer after an upgrade."""
    assert uniform(0, 0, 0) == 0.011546754286331562
    assert uniform(-1, 0, 0) == 0.23494158814525556
    assert uniform(-(2**63), 3, 2**40) == 0.4376057660979986


@pytest.mark.parametrize("position", [0, 9, 63, 64, 65, 127, 128, 2**40, 2**64 - 2, 2**64 - 1])
def test_a_draw_is_what_numpy_makes_of_the_same_counter(position: int) -> None:
    assert uniform(5, 2, position) == Generator(Philox(key=(2 << 64) | 5, counter=position)).random()


def test_positions_of_one_choice_are_uniform_and_uncorrelated() -> None:
    values = [uniform(42, 0, position) for position in range(8000)]
    counts = [0] * 20
    for value in values:
        counts[int(value * 20)] += 1
    # 19 degrees of freedom: 50 is passed by chance once in 7,000 seeds, and this seed is fixed.
    assert sum((count - 400) ** 2 / 400 for count in counts) < 50
    centred = [value - 0.5 for value in values]
    lagged = sum(a * b for a, b in pairwise(centred)) / len(values)
    assert abs(lagged) < 5 / 12 / len(values) ** 0.5


@pytest.mark.parametrize(
    ("seed", "choice", "position", "word"),
    [
        (2**63, 0, 0, "seed"),
        (-(2**63) - 1, 0, 0, "seed"),
        (0, -1, 0, "choice"),
        (0, 2**64, 0, "choice"),
        (0, 0, -1, "position"),
        (0, 0, 2**64, "position"),
    ],
)
def test_a_key_out_of_range_is_refused(seed: int, choice: int, position: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        uniform(seed, choice, position)
