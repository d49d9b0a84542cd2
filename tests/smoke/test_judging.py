"""The judge: lenient on words, strict on content."""

from __future__ import annotations

import pytest

from kaminari.smoke.battery import ITEMS, Ask
from kaminari.smoke.judging import Expectation, fold

ASKS = {f"{item.name}-{number}": ask for item in ITEMS for number, ask in enumerate(item.asks)}


def test_folding_keeps_words_and_numbers_only() -> None:
    assert fold("¡París, the TOTAL: 12.34!  (2 €)") == ["paris", "the", "total", "12.34", "2"]


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("text-0", "**Paris** is the capital of France."),
        ("text-1", "3 + 4 = 7."),
        ("text-1", "Seven"),
        ("shape-0", "The shape is a CIRCLE, and its colour is Red, on a white background."),
        ("shape-0", "<think>a blue square?</think>a red circle"),
        ("reading-0", 'The text says: "TOTAL 12.34".'),
        ("reading-0", "total\n12.34"),
        ("two-0", "1. A solid red circle.\n2. A solid blue square."),
        ("large-0", "SOUTH 8350 below, NORTH 4721 above"),
        ("followup-1", "The triangle is green."),
        ("spanish-0", "La capital de Francia es Paris."),
        ("spanish-1", "Es de color azul."),
    ],
)
def test_right_answers_pass_in_any_wording(key: str, answer: str) -> None:
    assert ASKS[key].expects.objection(answer) is None


@pytest.mark.parametrize(
    ("key", "answer", "objection"),
    [
        ("text-0", "", "an empty answer"),
        ("text-0", "!!!!!!!!", "an empty answer"),
        ("text-0", "Lyon", "does not say Paris"),
        ("text-0", "Parisian", "does not say Paris"),
        ("text-1", "37", "does not say 7 or seven"),
        ("shape-0", "a red square", "does not say circle"),
        ("shape-0", "a red or blue circle", "says blue"),
        ("shape-0", "<think>a red circle</think>I cannot tell", "does not say red"),
        ("reading-0", "TOTAL 12.3", "does not say TOTAL 12.34"),
        ("reading-0", "TOTAL 112.34", "does not say TOTAL 12.34"),
        ("two-0", "first: a blue square, second: a red circle", "does not say red, then blue"),
        ("two-0", "first: a red circle, second: a red circle", "does not say red, then blue"),
        ("large-0", "NORTH 4721", "does not say SOUTH 8350"),
        ("followup-1", "red", "does not say green"),
        ("cache-2", "Paris, a blue square", "says blue"),
        ("spanish-1", "blue", "does not say azul"),
        ("spanish-1", "azul, or rather blue", "says blue"),
    ],
)
def test_wrong_answers_are_named(key: str, answer: str, objection: str) -> None:
    assert ASKS[key].expects.objection(answer) == objection


def test_no_phrase_is_taken_twice() -> None:
    twice = Expectation((("red", "red"),))
    assert twice.objection("red") == "does not say red, then red"
    assert twice.objection("red, red") is None


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_no_question_holds_its_own_answer(ask: Ask) -> None:
    """A server that only repeats the question must not pass."""
    assert ask.expects.objection(ask.question) is not None
