"""The items of the battery: what is asked, with which pictures, and what the answer must say.

Questions are plain ones: the embedded demo was trained on their wording, and any real model understands it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kaminari.smoke.judging import Expectation
from kaminari.smoke.pictures import COLOURS, SHAPES, Picture, line, page, shape

# Names that an answer about one of our shapes has no reason to hold. White and black may be the background's.
OTHERS = frozenset({*COLOURS, *SHAPES, "yellow", "orange", "purple", "pink", "brown", "star", "diamond"})


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, its pictures, and what the answer must say.

    fresh:  begins a conversation of its own; otherwise it goes on from the question before
    """

    question: str
    expects: Expectation
    pictures: tuple[Picture, ...] = ()
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the table: a name for `--only` and `--skip`, what it shows, and its questions in order."""

    name: str
    shows: str
    asks: tuple[Ask, ...]


def _sees(*sequences: tuple[str, ...]) -> Expectation:
    """The phrases, and no name of another colour or shape."""
    said = {word for sequence in sequences for phrase in sequence for word in phrase.split("|")}
    return Expectation(sequences, OTHERS - said)


def _says(*phrases: str) -> Expectation:
    """The phrases in any order, and no colour or shape."""
    return Expectation(tuple((phrase,) for phrase in phrases), OTHERS)


_RED_CIRCLE, _BLUE_SQUARE, _GREEN_TRIANGLE = (
    partial(shape, "red", "circle"),
    partial(shape, "blue", "square"),
    partial(shape, "green", "triangle"),
)

ITEMS: tuple[Item, ...] = (
    Item(
        "text",
        "plain text",
        (
            Ask("What is the capital of France?", _says("Paris")),
            Ask("What is 3+4?", _says("7|seven"), fresh=True),
        ),
    ),
    Item(
        "shape",
        "colour and shape",
        (Ask("What shape and color?", _sees(("red",), ("circle",)), (_RED_CIRCLE,)),),
    ),
    Item(
        "reading",
        "rendered text",
        (Ask("Read the text.", _says("TOTAL 12.34"), (partial(line, "TOTAL 12.34"),)),),
    ),
    Item(
        "two",
        "two pictures in one prompt, in order",
        (
            Ask(
                "Describe both images.",
                _sees(("red", "blue"), ("circle", "square")),
                (_RED_CIRCLE, _BLUE_SQUARE),
            ),
        ),
    ),
    Item(
        "large",
        "a large picture that needs slices",
        (
            Ask(
                "Read the text.",
                _says("NORTH 4721", "SOUTH 8350"),
                (partial(page, "NORTH 4721", "SOUTH 8350"),),
            ),
        ),
    ),
    Item(
        "followup",
        "a follow-up about an earlier picture",
        (
            Ask("What shape is it?", _sees(("triangle",)), (_GREEN_TRIANGLE,)),
            Ask("What color is it?", Expectation((("green",),), OTHERS - {"green", "triangle"})),
        ),
    ),
    Item(
        "cache",
        "another picture, then plain text, after a picture",
        (
            Ask("What shape and color?", _sees(("red",), ("circle",)), (_RED_CIRCLE,)),
            Ask("What shape and color?", _sees(("blue",), ("square",)), (_BLUE_SQUARE,), fresh=True),
            Ask("What is the capital of France?", _says("Paris"), fresh=True),
        ),
    ),
    Item(
        "spanish",
        "Spanish",
        (
            Ask("¿Cuál es la capital de Francia?", _says("París")),
            Ask(
                "¿De qué color es?",
                Expectation((("azul",),), frozenset({"rojo", "roja", "verde", "amarillo", "blue"})),
                (_BLUE_SQUARE,),
                fresh=True,
            ),
        ),
    ),
)
