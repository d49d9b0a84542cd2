"""Advice follows the rates that were measured: fewer bits, more threads and slots only where they pay."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kaminari.bench.advice import Advice, Rate, advise

Visits = float | tuple[float, ...]


def rates(usual: int = 1, **formats: Mapping[tuple[int, int], Visits]) -> list[Rate]:
    """Rates by format, each with the tokens/s of its visits by (threads, rows)."""
    return [
        Rate(name, threads, rows, visits if isinstance(visits, tuple) else (visits,), threads == usual)
        for name, found in formats.items()
        for (threads, rows), visits in found.items()
    ]


def chosen(advice: Advice) -> tuple[str, int, int]:
    return advice.format, advice.threads, advice.slots


def test_fewer_bits_are_never_guessed_to_be_faster() -> None:
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 10.9}, int4={(1, 1): 9.0})).format == "none"
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 11.1}, int4={(1, 1): 12.0})).format == "int8"
    assert advise(rates(none={(1, 1): 10.0}, int8={(1, 1): 10.5}, int4={(1, 1): 12.0})).format == "int4"


def test_a_format_that_is_faster_within_the_spread_alone_is_not_chosen() -> None:
    unsteady = {"none": {(1, 1): (8.0, 10.0, 14.0)}, "int8": {(1, 1): (11.0, 12.0, 15.0)}}
    advice = advise(rates(**unsteady))
    assert advice.format == "none"
    assert "none: 10.0 (9.0 to 12.0) tokens/s" in advice.reasons[0]
    assert "int8 is 1.20 times as fast, which is within the spread" in advice.reasons[0]
    unsteady["int8"] = {(1, 1): (12.5, 13.0, 15.0)}
    assert advise(rates(**unsteady)).format == "int8"


def test_usual_threads_stay_where_others_are_not_beyond_doubt_faster() -> None:
    """Whichever the usual ones are: the same visits, asked both ways."""
    tie = {(1, 1): (10.0, 12.0, 11.0), (2, 1): (12.0, 11.0, 10.5)}
    assert advise(rates(1, none=tie)).threads == 1
    assert advise(rates(2, none=tie)).threads == 2
    once = {(1, 1): (13.0, 11.5, 10.0), (2, 1): (10.0, 11.4, 11.0)}  # the first visit met a busy machine
    assert advise(rates(2, none=once)).threads == 2
    little = {(1, 1): (10.9, 10.7, 10.5), (2, 1): (10.0, 10.0, 10.0)}  # beyond doubt, and not worth it
    advice = advise(rates(2, none=little))
    assert advice.threads == 2
    assert "1 would be 1.07 times as fast (1.06 to 1.08), which is too little" in advice.reasons[1]


def test_visits_of_one_format_are_compared_in_pairs() -> None:
    """What the machine gives doubles from round to round, and one thread is faster in each."""
    found = {(1, 1): (12.0, 24.0, 48.0), (2, 1): (10.0, 20.0, 40.0)}
    assert advise(rates(2, none=found)).threads == 1
    apart = rates(1, none={(1, 1): found[2, 1]}, int8={(1, 1): found[1, 1]})
    assert advise(apart).format == "none", "formats do not take turns"


def test_a_format_is_judged_with_its_usual_threads() -> None:
    """And the best of many noisy visits with others does not count for it."""
    found = rates(2, none={(2, 1): (10.0, 10.0, 10.0)}, int8={(1, 1): (13.0, 9.0, 9.0), (2, 1): (10.5,) * 3})
    assert advise(found).format == "none"


def test_slots_are_the_fewest_that_come_near_the_best() -> None:
    found = {(1, 1): 10.0, (2, 1): 12.0, (1, 4): 30.0, (2, 4): 50.0, (1, 8): 32.0, (2, 8): 90.0}
    assert chosen(advise(rates(2, none=found))) == ("none", 2, 8)
    assert chosen(advise(rates(1, none=found | {(2, 1): 10.8}))) == ("none", 1, 4)


def test_the_reasons_hold_the_numbers() -> None:
    said = "\n".join(advise(rates(none={(1, 1): 10.0, (1, 2): 18.5}, int8={(1, 1): 21.0})).reasons)
    assert "int8: 21.0 (21.0 to 21.0) tokens/s at one row, 2.10 times none's" in said
    said = "\n".join(advise(rates(none={(1, 1): 10.0, (1, 2): 18.5}, int8={(1, 1): 10.1})).reasons)
    assert "int8 is 1.01 times as fast, which is not worth its bits" in said
    assert "slots: 2, of tokens/s 10.0 (10.0 to 10.0) with 1, 18.5 (18.5 to 18.5) with 2" in said


def test_what_is_faster_for_many_is_said_beside_what_is_faster_for_one() -> None:
    found = rates(int8={(1, 1): 20.0, (1, 8): 90.0}, int4={(1, 1): 30.0, (1, 8): 80.0})
    advice = advise(found)
    assert chosen(advice) == ("int4", 1, 8)
    assert (
        "where 8 ask at once, --quantization int8 --threads 1 makes 90.0 (90.0 to 90.0) tokens/s"
        in advice.reasons
    )
    found = rates(int8={(1, 1): 20.0, (1, 8): 90.0}, int4={(1, 1): 30.0, (1, 8): 85.0})
    assert not any("at once" in reason for reason in advise(found).reasons)


def test_without_a_rate_there_is_no_advice() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        advise([])
