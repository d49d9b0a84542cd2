"""Pages: what is asked of the engine, how answers are counted, and how far texts are apart."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image

from kaminari import Engine
from kaminari.config import load_settings
from kaminari.verify.edit_distance import edit_distance
from kaminari.verify.pages import Page, PageError, Reading, ask, score


def page(text: str, kind: str = "page", picture: bytes | None = None) -> Page:
    if picture is None:
        file = BytesIO()
        Image.new("RGB", (64, 64), "white").save(file, format="PNG")
        picture = file.getvalue()
    return Page("here", picture, "What does it say?", text, kind)


def test_edit_distance() -> None:
    cases = {("", ""): 0, ("abc", ""): 3, ("kitten", "sitting"): 3, ("12.34", "12.84"): 1, ("ab", "ba"): 2}
    cases |= {("flaw", "lawn"): 2, ("\U0001f354 x", "x"): 2, ("intention", "execution"): 5, ("aaab", "b"): 3}
    assert {pair: edit_distance(*pair) for pair in cases} == cases
    assert all(edit_distance(other, one) == edits for (one, other), edits in cases.items())


def test_readings_are_counted_by_kind() -> None:
    pages = [page("12.50", "total"), page("Tea"), page("3.00", "total")]
    total, other = score(pages, ["12.80", "Tea", "3.00"])
    assert total == Reading("total", pages=2, exact=1, edits=1, characters=9)
    assert total.character_error_rate == pytest.approx(1 / 9)
    assert other == Reading("page", pages=1, exact=1, edits=0, characters=3)


def test_the_engine_answers_every_page_in_bounded_length() -> None:
    settings = load_settings({"model.device": "cpu", "engine.slots": "2"}, environ={})
    pages = [page("x" * length) for length in (1, 2, 3)]
    done: list[None] = []
    with Engine.load(settings) as engine:
        answers = ask(engine, pages, lambda: done.append(None))
        assert len(done) == len(answers) == 3
        for each, answer in zip(pages, answers, strict=True):
            assert (
                len(engine.frontend.texts.prepare(answer or "x", "prompt").token_ids)
                <= 2 * len(each.text) + 16
            )
        with pytest.raises(PageError, match=r"^here: "):
            ask(engine, [*pages, page("x", picture=b"no picture")], lambda: None)
