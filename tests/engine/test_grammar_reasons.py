"""Why a form was refused: in our own words, without the library's options and without the client's text."""

from __future__ import annotations

from typing import Any

import pytest

from kaminari.engine.answer_format import AnswerFormat, GrammarFormat, JsonFormat, RegexFormat
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar_reasons import NO_ANSWER, NO_REASON, plain_reason
from tests.engine.test_grammar import COMPILER

SECRET = "hunter2"
OVERLAPPING: dict[str, Any] = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (JsonFormat({"not": {"const": SECRET}}), "it uses `not`, which"),
        (JsonFormat({"if": {}, "then": {"const": SECRET}}), "it uses `if`, `then`, which"),
        (JsonFormat(OVERLAPPING), "the branches of `oneOf` overlap; use `anyOf`"),
        (JsonFormat({"type": SECRET}), "`type` must be null, boolean"),
        (JsonFormat({"type": 5}), "`type` must be null, boolean"),
        (JsonFormat({"type": "object", "required": SECRET}), "`required` must be an array"),
        (JsonFormat({"type": "string", "minLength": SECRET}), "`minLength` must be a whole number"),
        (JsonFormat({"enum": SECRET}), "`enum` must be an array"),
        (JsonFormat({"properties": SECRET}), "`properties` must be an object"),
        (JsonFormat({"items": 5}), "a schema in it must be an object, true or false"),
        (JsonFormat({"$ref": 5}), "`$ref` must be a string"),
        (JsonFormat({"$ref": f"http://{SECRET}/x"}), "`$ref` must refer to a place in the schema"),
        (JsonFormat({"$ref": f"#/{SECRET}"}), "a `$ref` refers to a place that does not exist"),
        (JsonFormat({"type": "string", "minLength": 5, "maxLength": 2}), "`minLength` is greater than"),
        (JsonFormat({"type": "number", "multipleOf": 0}), "`multipleOf` must be above 0"),
        (JsonFormat({"type": "string", "format": "email", "pattern": f"^{SECRET}$"}), NO_ANSWER),
        (
            JsonFormat({"type": "object", "properties": {SECRET: False}, "required": [SECRET]}),
            NO_ANSWER,
        ),
        (JsonFormat({"type": "string", "pattern": f"(?<!{SECRET})b"}), "look-around"),
        (RegexFormat(f"$a{SECRET}"), "look-around and anchors"),
        (RegexFormat(f"(({SECRET}"), "no regular expression: unclosed group"),
        (RegexFormat(f"(?P<{SECRET}>x)(?P<{SECRET}>y)"), "duplicate capture group name"),
        (RegexFormat(r"[^\s\S]"), NO_ANSWER),
        (GrammarFormat(f"start: {SECRET}"), "line 1 names a rule that does not exist"),
        (GrammarFormat(f'start: "a\nb: "{SECRET}"'), "line 1 cannot be read"),
        (GrammarFormat(f"%import common.{SECRET.upper()}\nstart: {SECRET.upper()}"), "line 1 imports"),
        (GrammarFormat(f"start: <{SECRET}>"), "line 1 names a control token"),
        (GrammarFormat("start: A\nA: B\nB: A"), "the token in line 3 refers to itself"),
    ],
    ids=str,
)
def test_a_refusal_says_what_is_wrong_and_repeats_nothing(form: AnswerFormat, reason: str) -> None:
    with pytest.raises(RequestError) as refusal:
        COMPILER.compile(form)
    message = refusal.value.message
    assert message.startswith(f"{form.field} cannot be enforced: ")
    assert reason in message
    assert SECRET not in message.lower()
    assert "coerce" not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "said",
    [
        "",
        "thread 'x' panicked at src/lib.rs:5",
        f"odd: {SECRET}",
        f"regex parse error:\nerror: {SECRET}: {{x}}",
    ],
)
def test_what_is_not_known_is_not_passed_on(said: str) -> None:
    assert plain_reason(said) == NO_REASON


def test_a_form_past_the_librarys_bounds_is_called_too_costly() -> None:
    for said in (
        "grammar size (number of symbols) too big (limit for this grammar: 5)",
        "too many states: 9",
    ):
        assert "make it simpler" in plain_reason(said)
