"""What the generator makes: pictures, the questions about them, and the answers that are right.

Plain data; nothing here draws or asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True, slots=True)
class Run:
    """One piece of text as it stands in a picture.

    box:    left, top, right, bottom of its ink, in pixels
    edges:  [len(text) + 1] where each character begins and the last ends, in pixels from the left
    slope:  pixels that its line sinks per pixel to the right
    """

    text: str
    box: tuple[float, float, float, float]
    edges: tuple[float, ...]
    slope: float = 0.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture and the text in it, in reading order."""

    image: Image.Image
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Quote:
    """A stretch of an answer that stands in the first picture.

    start, length:  of the stretch, in characters of the answer
    run, offset:    the drawing's run that it is copied from, and where in that run's text it begins
    """

    start: int
    length: int
    run: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """`quotes` tell a training where the answer is read; there are none where it is not read by letters."""

    question: str
    answer: str
    quotes: tuple[Quote, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation about pictures, which stand before its first question.

    `style` names how the pictures were drawn. The last turn is the one that an evaluation asks; those before
    it are its history.
    """

    task: str
    style: str
    drawings: tuple[Drawing, ...]
    turns: tuple[Turn, ...]

    @property
    def question(self) -> str:
        return self.turns[-1].question

    @property
    def answer(self) -> str:
        return self.turns[-1].answer
