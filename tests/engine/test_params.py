"""Sampling parameters: every bad value names its field."""

from __future__ import annotations

from typing import Any

import pytest

from kaminari.engine.errors import ContextLengthExceeded, RequestError
from kaminari.engine.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", -0.5),
        ("min_p", 1.5),
        ("n", 0),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("stop", ("x",) * 17),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("presence_penalty", 2.01),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", -2.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("logit_bias", ((1, 100.5),)),
        ("logit_bias", ((1, float("nan")),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((token, 1.0) for token in range(1025))),
        ("stop_token_ids", (1,) * 129),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1),
        ("temperature", 0.0),
        ("temperature", 2.0),
        ("top_p", 1.0),
        ("top_k", -1),
        ("top_k", 10**9),
        ("min_p", 1.0),
        ("seed", -(2**63)),
        ("stop", ("x" * 1024,) * 16),
    ],
)
def test_values_at_the_edge_are_fine(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_greedy_begins_below_a_hundred_thousandth() -> None:
    assert SamplingParams(temperature=0.9e-5).greedy
    assert not SamplingParams(temperature=1.1e-5).greedy


def test_a_prompt_that_is_too_long_says_both_numbers() -> None:
    error = ContextLengthExceeded(5000, 2048, at_least=True)
    assert error.code == "context_length_exceeded"
    assert error.field == "messages"
    assert "2048" in error.message
    assert "at least 5000" in error.message
    assert "tools" not in error.message


@pytest.mark.parametrize("token", [-1, 100, 2**40])
def test_a_token_that_the_vocabulary_does_not_have_is_refused(token: int) -> None:
    for params in (SamplingParams(logit_bias=((token, 1.0),)), SamplingParams(stop_token_ids=(5, token))):
        with pytest.raises(RequestError, match="0 to 99"):
            params.check_vocabulary(100)
    SamplingParams(logit_bias=((0, 1.0), (99, 1.0)), stop_token_ids=(0, 99)).check_vocabulary(100)


def test_a_least_length_above_the_most_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=5, min_tokens=6)
    assert caught.value.field == "min_tokens"
