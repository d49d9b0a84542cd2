"""Advice follows the rates that were measured: fewer bits, more threads and slots only where they pay."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kaminari.bench.advice import Advice, Rate, advise


def rates(**formats: Mapping[tuple[int, int], float]) -> list[Rate]:
    """Rates by format, each with tokens/s by (threads, rows)."""
    return [
        Rate(name, threads, rows, tokens)
        for name, found in formats.items()
        for (threads, rows), tokens in found.items()
    ]


def chosen(advice: Advice) -> tuple[str, int, int]:
    return advice.format, advice.threads, advice.slots


def test_fewer_bits_are_never_guessed_to_be_faster() -> None:
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 10.9}, int4={(1, 1): 9.0})).format == "none"
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 11.1}, int4={(1, 1): 12.0})).format == "int8"
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 10.5}, int4={(1, 1): 12.0})).format == "int4"


def test_threads_and_slots_are_the_fewest_that_come_near_the_best() -> None:
    found = {(1, 1): 10.0, (2, 1): 10.8, (1, 4): 30.0, (2, 4): 50.0, (1, 8): 32.0, (2, 8): 90.0}
    assert chosen(advise(rates(none=found))) == ("none", 1, 4)
    found |= {(2, 1): 12.0}
    assert chosen(advise(rates(none=found))) == ("none", 2, 8)


def test_the_reasons_hold_the_numbers() -> None:
    said = "\n".join(advise(rates(none={(1, 1): 10.0, (1, 2): 18.5}, int8={(1, 1): 21.0})).reasons)
    assert "int8: 21.0 tokens/s at one row, 2.10 times none's" in said
    said = "\n".join(advise(rates(none={(1, 1): 10.0, (1, 2): 18.5}, int8={(1, 1): 10.1})).reasons)
    assert "int8 is 1.01 times as fast, which is not worth its bits" in said
    assert "slots: 2, of tokens/s 10.0 with 1, 18.5 with 2" in said


def test_what_is_faster_for_many_is_said_beside_what_is_faster_for_one() -> None:
    found = rates(int8={(1, 1): 20.0, (1, 8): 90.0}, int4={(1, 1): 30.0, (1, 8): 80.0})
    advice = advise(found)
    assert chosen(advice) == ("int4", 1, 8)
    assert "where 8 ask at once, --quantization int8 --threads 1 makes 90.0 tokens/s" in advice.reasons
    found = rates(int8={(1, 1): 20.0, (1, 8): 90.0}, int4={(1, 1): 30.0, (1, 8): 85.0})
    assert not any("at once" in reason for reason in advise(found).reasons)


def test_without_a_rate_there_is_no_advice() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        advise([])
