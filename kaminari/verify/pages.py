"""How well a model reads pictures whose text is known: the engine's answers, and how much of them is wrong.

Pages come from a file of JSON lines, one object a picture:

    {"image": "1.png", "text": "Cafe Nord\\nTea 2.50", "question": "What does it say?", "kind": "receipt"}

`image` is a path from the file's folder and `text` what the answer should be; the others may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kaminari.engine.answer import collect
from kaminari.engine.engine import Engine
from kaminari.engine.errors import RequestError
from kaminari.engine.params import SamplingParams
from kaminari.verify.edit_distance import edit_distance
from kaminari.verify.prompts import Prompt

QUESTION = "Write down all text in the picture, line by line, and nothing else."
KIND = "page"
SPARE_TOKENS = 16


class PageError(Exception):
    """Pages that cannot be read or asked; the message names the file and the line."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    image: str = Field(min_length=1)
    text: str = Field(min_length=1)
    question: str = Field(QUESTION, min_length=1)
    kind: str = Field(KIND, min_length=1)


@dataclass(frozen=True, slots=True)
class Page:
    """A picture, which is a whole encoded file, what is asked about it and what is right.

    name:  where it stands, for people
    """

    name: str
    picture: bytes
    question: str
    text: str
    kind: str

    def prompt(self) -> Prompt:
        """It as a prompt, called by its kind."""
        return Prompt(self.kind, self.question, (self.picture,))


@dataclass(frozen=True, slots=True)
class Reading:
    """How pages of one kind were read.

    exact:       answers that are right to the last character
    edits:       characters to change, in all answers
    characters:  of all the right texts
    """

    kind: str
    pages: int
    exact: int
    edits: int
    characters: int

    @property
    def character_error_rate(self) -> float:
        """Edits per character of the right texts; above 1 where answers are much too long."""
        return self.edits / self.characters


def read_pages(file: Path) -> tuple[Page, ...]:
    """Read the file of pages and their pictures. Raises `PageError`."""
    pages = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        name = f"{file}, line {number}"
        try:
            page = _Line.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise PageError(f"{name}: {f'{place}: ' if place else ''}{problem['msg']}") from error
        try:
            picture = (file.parent / page.image).read_bytes()
        except OSError as error:
            raise PageError(f"{name}: cannot read {page.image}: {error.strerror or error}") from error
        pages.append(Page(name, picture, page.question, page.text, page.kind))
    if not pages:
        raise PageError(f"{file} names no pages")
    return tuple(pages)


def ask(engine: Engine, pages: Sequence[Page], answered: Callable[[], object]) -> list[str]:
    """The greedy answers, as many at a time as there are slots. `answered` is called after each.

    An answer ends after twice as many tokens as its text has characters, or with the context. Raises
    `PageError`; `EngineFault` and `EngineUnavailable` where the engine fails.
    """
    answers = []
    with ThreadPoolExecutor(engine.info.slots) as pool:
        try:
            for answer in pool.map(lambda page: _answer(engine, page), pages):
                answers.append(answer)
                answered()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return answers


def score(pages: Iterable[Page], answers: Iterable[str]) -> tuple[Reading, ...]:
    """One reading for each kind, in the order of the pages."""
    readings: dict[str, Reading] = {}
    for page, answer in zip(pages, answers, strict=True):
        before = readings.get(page.kind, Reading(page.kind, 0, 0, 0, 0))
        readings[page.kind] = Reading(
            page.kind,
            before.pages + 1,
            before.exact + (answer == page.text),
            before.edits + edit_distance(answer, page.text),
            before.characters + len(page.text),
        )
    return tuple(readings.values())


def _answer(engine: Engine, page: Page) -> str:
    try:
        prompt = engine.prepare(page.prompt().conversation())
        room = engine.info.context - len(prompt.token_ids)
        most = min(2 * len(page.text) + SPARE_TOKENS, room)
        return collect(engine.submit(prompt, SamplingParams(temperature=0, max_tokens=max(1, most)))).text
    except RequestError as error:
        raise PageError(f"{page.name}: {error.message}") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise PageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PageError(f"{file} is no UTF-8 text") from error
