"""Calls of tools in Qwen3-VL's answers: however the text is cut, the same calls and text come out."""

from __future__ import annotations

import json
import random

import pytest

from kaminari.model.calls import CallArguments, CallEnd, CallStart, PlainText, Written
from kaminari.model.qwen3_vl.calls import HermesCallFormat
from tests.model.reading import Read, read_pieces
from tests.patience import processor_time


def read(*pieces: str) -> Read:
    return read_pieces(HermesCallFormat().parser({}), pieces)


def call(name: str, arguments: str) -> str:
    before, _, after = HermesCallFormat().spell(name, {"type": "object"})
    assert isinstance(before, Written)
    assert isinstance(after, Written)
    return HermesCallFormat.opening + before.text + arguments + after.text


ROME = call("find_town", '{"city": "Rome"}')
OSLO = call("find_town", '{"city": "Oslo"}')
# Case tool-stream-dup
TIGHT = '<tool_call>{"name":"find_town","arguments":{"n":23,"city":"QX\\"7TR2"}}</tool_call>'

READINGS: list[tuple[str, str, list[tuple[str, str, bool]]]] = [
    # answer, its text, its calls
    ("", "", []),
    ("just text\n", "just text\n", []),
    (TIGHT, "", [("find_town", '{"n":23,"city":"QX\\"7TR2"}', True)]),
    (ROME, "", [("find_town", '{"city": "Rome"}', True)]),
    (
        f"{ROME}\n{OSLO}",
        "",
        [("find_town", '{"city": "Rome"}', True), ("find_town", '{"city": "Oslo"}', True)],
    ),
    (f"{ROME}{OSLO}", "", [("find_town", f'{{"city": "{city}"}}', True) for city in ("Rome", "Oslo")]),
    (f"I look it up.\n{ROME}\n", "I look it up.", [("find_town", '{"city": "Rome"}', True)]),
    (f"a\n\n{ROME}\n\nb", "a\n\n\nb", [("find_town", '{"city": "Rome"}', True)]),
    # keys in another order, keys that nobody knows, odd blanks, no arguments
    (
        '<tool_call>{"arguments":{"a":"}{"},"id":[1,{"x":"]"}],"name":"f"}</tool_call>',
        "",
        [("f", '{"a":"}{"}', True)],
    ),
    ('<tool_call>\t{ "name" : "f" , "arguments" : { } }\r\n </tool_call>', "", [("f", "{ }", True)]),
    ('<tool_call>{"name":"f"}</tool_call>', "", [("f", "{}", True)]),
    ('<tool_call>{"name":"f","arguments":null}</tool_call>', "", [("f", "null", True)]),
    ('<tool_call>{"n\\u0061me":"\\u0066","arguments":[1]}</tool_call>', "", [("f", "[1]", True)]),
    (
        '<tool_call>{"name":"f","arguments":{"a":"</tool_call><tool_call>"}}</tool_call>',
        "",
        [("f", '{"a":"</tool_call><tool_call>"}', True)],
    ),
    (
        '<tool_call>{"name":"f","arguments":{"日本":"Straße 😀"}}</tool_call>',
        "",
        [("f", '{"日本":"Straße 😀"}', True)],
    ),
    ('<tool_call>{"name":"f","name":"g","arguments":{},"arguments":{"a":1}}', "", [("f", "{}", True)]),
    # the closing tag is missing, or other text stands in its place
    ('<tool_call>{"name":"f","arguments":{}}', "", [("f", "{}", True)]),
    ('<tool_call>{"name":"f","arguments":{}}</tool', "", [("f", "{}", True)]),
    ('<tool_call>{"name":"f","arguments":{}}\nso', "\nso", [("f", "{}", True)]),
    (
        '<tool_call>{"name":"f","arguments":{}}' + "\n" + ROME,
        "",
        [("f", "{}", True), ("find_town", '{"city": "Rome"}', True)],
    ),
    # cut off
    ('<tool_call>\n{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b', False)]),
    ('<tool_call>\n{"name": "f", "arg', "", [("f", "", False)]),
    ('<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', []),
    ("a\n<tool_ca", "a\n<tool_ca", []),
    # not calls
    ("a < b <tool b <tool_call", "a < b <tool b <tool_call", []),
    ("<tool_call>find_town()</tool_call>", "<tool_call>find_town()</tool_call>", []),
    ("x\n<tool_call>[]", "x\n<tool_call>[]", []),
    (
        '<tool_call>{"name":5,"arguments":{}}</tool_call>',
        '<tool_call>{"name":5,"arguments":{}}</tool_call>',
        [],
    ),
    ('<tool_call>{"name":"\\ud800"}', '<tool_call>{"name":"\\ud800"}', []),
    ('<tool_call>{"arguments":{}}', '<tool_call>{"arguments":{}}', []),
    ("</tool_call>", "</tool_call>", []),
    (f"<tool_call>{ROME}", "<tool_call>", [("find_town", '{"city": "Rome"}', True)]),
    (f"\n\n{ROME}", "\n", [("find_town", '{"city": "Rome"}', True)]),
    # goes wrong after its name
    ('<tool_call>{"name":"f","arguments":{"a":1} oops', "oops", [("f", '{"a":1}', False)]),
]


@pytest.mark.parametrize(("answer", "text", "calls"), READINGS, ids=range(len(READINGS)))
def test_an_answer_reads_the_same_in_one_piece_and_cut_anywhere(
    answer: str, text: str, calls: list[tuple[str, str, bool]]
) -> None:
    """Cases tool-stream-dup, tool-stream-index and tool-stream-lost."""
    whole = read(answer)
    assert (whole.text, whole.calls) == (text, calls)
    assert read(*answer) == whole
    for cut in range(1, len(answer)):
        assert read(answer[:cut], answer[cut:]) == whole, cut


def test_random_cuts_of_random_answers_read_the_same() -> None:
    rng = random.Random(7)
    pieces = [
        ROME,
        "\n",
        OSLO,
        "text ",
        "<tool_call>",
        '{"name": "f", "arguments": {',
        '"a"',
        ":",
        "}",
        "</tool_call>",
    ]
    for _ in range(300):
        answer = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        cuts = sorted(rng.choices(range(len(answer) + 1), k=rng.randint(0, 6)))
        parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(*parts) == read(answer), answer


def test_nothing_is_held_back_longer_than_it_must() -> None:
    parser = HermesCallFormat().parser({})
    assert parser.push("Hello\n") == [PlainText("Hello")]
    assert parser.push("world") == [PlainText("\nworld")]
    assert parser.push('<tool_call>\n{"name": "f"') == [CallStart("f")]
    assert parser.push(', "arguments": {"a') == [CallArguments('{"a')]
    assert parser.push('": 1}') == [CallArguments('": 1}')]
    assert parser.push("}") == [CallEnd()]
    assert parser.push("\n</tool_call>") == []
    assert parser.flush() == []


def test_a_rendered_call_reads_back() -> None:
    for name in ("f", "get-weather.v2"):
        for arguments in ({}, {"a": [1, {"b": None}]}, {'"': "\\", "ü": "\u2028"}):
            text = json.dumps(arguments, ensure_ascii=False)
            assert read(call(name, text)).calls == [(name, text, True)]


@pytest.mark.parametrize(
    "flood",
    [
        '<tool_call>{"a":[' * 8000,
        '<tool_call>{"arguments":"' + "x" * 100_000,
        "<tool_call>" * 10_000,
        call("f", "{}") + "\n" * 100_000,
        "\n<tool_call" * 10_000,
        '<tool_call>{"name":"f","arguments":' + "[" * 100_000,
        '<tool_call>{"name":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=range(7),
)
def test_the_time_is_linear_in_the_answer(flood: str) -> None:
    with processor_time(3):
        read(*(flood[place : place + 4] for place in range(0, len(flood), 4)))
