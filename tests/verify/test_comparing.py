"""How differences are measured and answers judged."""

from __future__ import annotations

import math

import pytest
import torch

from kaminari.verify.comparing import StageDifference, compare_greedy, difference, exact, near_tie
from kaminari.verify.trace import Greedy

ONES = torch.ones(3, 4)


def test_equal_tensors_do_not_differ() -> None:
    assert difference(ONES, ONES.clone()) == 0
    assert difference(torch.empty(0, 4), torch.empty(0, 4)) == 0
    assert difference(torch.zeros(2, 2), torch.zeros(2, 2)) == 0


def test_a_difference_is_relative_to_the_value_and_to_the_median() -> None:
    other = ONES.clone()
    other[1, 2] += 0.02
    assert difference(other, ONES) == pytest.approx(0.01, rel=1e-3)
    assert difference(1000 * other, 1000 * ONES) == pytest.approx(0.01, rel=1e-3)


def test_a_huge_activation_hides_nothing() -> None:
    theirs = ONES.clone()
    theirs[0, 0] = 1e6
    ours = theirs.clone()
    ours[2, 3] += 0.02
    assert difference(ours, theirs) == pytest.approx(0.01, rel=1e-3)


def test_where_most_values_are_zero_the_mean_is_the_scale() -> None:
    theirs = torch.tensor([0.0, 0.0, 0.0, 4.0])
    ours = torch.tensor([0.5, 0.0, 0.0, 4.0])
    assert difference(ours, theirs) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_infinitely_far(value: float) -> None:
    other = ONES.clone()
    other[0, 0] = value
    assert difference(other, ONES) == math.inf
    assert difference(ONES, other) == math.inf
    assert difference(other, other.clone()) == math.inf


def test_other_shapes_are_infinitely_far() -> None:
    assert difference(ONES, ONES[:2]) == math.inf
    assert exact(torch.tensor([1, 2]), torch.tensor([1])) == math.inf
    assert exact(torch.tensor([1, 2]), torch.tensor([1, 3])) == math.inf
    assert exact(torch.tensor([1, 2]), torch.tensor([1, 2])) == 0


@pytest.mark.parametrize(
    ("entering", "output", "fault"),
    [(0.1, 0.1, None), (0.2, 0.0, "input"), (0.0, 0.2, "output"), (math.nan, 0.0, "input"), (1, 1, "input")],
)
def test_where_a_stage_is_at_fault(entering: float, output: float, fault: str | None) -> None:
    assert StageDifference("s", entering, output, 0.1).fault == fault


@pytest.mark.parametrize(
    ("ours", "parted", "passed"),
    [((1, 2, 3), None, True), ((1, 9, 3), 1, True), ((9, 2, 3), 0, False), ((1, 2, 9), 2, False)],
)
def test_an_answer_may_part_at_a_near_tie_only(ours: tuple[int, ...], parted: int, passed: bool) -> None:
    golden = Greedy((1, 2, 3), (0.5, 5e-5, 1e-3))
    outcome = compare_greedy(ours, golden, "p", 1e-4)
    assert (outcome.parted, outcome.passed) == (parted, passed)


def test_the_bound_of_a_near_tie() -> None:
    logits = torch.tensor([-16.0, 8.0])
    assert near_tie(torch.float32, logits) == 1e-4
    assert near_tie(torch.bfloat16, logits) == 0.5
