"""XML calls in the answers of Qwen3.5 and MiniCPM-V: however the text is cut, the same calls come out."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kaminari.model.calls import CallArguments, CallEnd, CallStart, PlainText
from kaminari.model.xml_calls import XmlCallFormat
from kaminari.model.xml_values import argument_json
from tests.cases.loading import case
from tests.hybrid_checkpoints import QWEN3_5_CHAT_TEMPLATE, SLICED_CHAT_TEMPLATE
from tests.model.reading import Read, read_pieces

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
TOOLS: dict[str, dict[str, Any]] = {
    "find_town": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "n": {"type": "integer"},
            "sure": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array"},
            "any": {},
        },
    },
    "clock": {"type": "object", "properties": {}},
}


def read(*pieces: str, tools: dict[str, dict[str, Any]] = TOOLS) -> Read:
    return read_pieces(XmlCallFormat().parser(tools), pieces)


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


ROME, OSLO = call("find_town", city="Rome"), call("find_town", city="Oslo")
CITY = '{"city": "Rome"}'
READINGS: list[tuple[str, str, list[tuple[str, str, bool]]]] = [
    # answer, its text, its calls
    ("", "", []),
    ("just text\n", "just text\n", []),
    (ROME, "", [("find_town", CITY, True)]),
    (f"{ROME}\n{OSLO}", "", [("find_town", CITY, True), ("find_town", '{"city": "Oslo"}', True)]),
    (f"{ROME}{OSLO}", "", [("find_town", CITY, True), ("find_town", '{"city": "Oslo"}', True)]),
    (f"I look.\n\n{ROME}\n", "I look.", [("find_town", CITY, True)]),
    (f"a\n\n\n{ROME}\n\nb", "a\n\n\nb", [("find_town", CITY, True)]),
    (call("clock"), "", [("clock", "{}", True)]),
    (call("unknown", x="a", n="5"), "", [("unknown", '{"x": "a", "n": 5}', True)]),
    # types
    (call("find_town", n="5", city="5"), "", [("find_town", '{"n": 5, "city": "5"}', True)]),
    (call("find_town", n=" -7 "), "", [("find_town", '{"n": -7}', True)]),
    (call("find_town", n="five"), "", [("find_town", '{"n": "five"}', True)]),
    (call("find_town", sure="True", note="None"), "", [("find_town", '{"sure": true, "note": null}', True)]),
    (
        call("find_town", note="null", city="null"),
        "",
        [("find_town", '{"note": null, "city": "null"}', True)],
    ),
    (call("find_town", note="5", any="5"), "", [("find_town", '{"note": "5", "any": 5}', True)]),
    (call("find_town", tags='[1, {"a": "b"}]'), "", [("find_town", '{"tags": [1, {"a": "b"}]}', True)]),
    (call("find_town", tags="[1, 2"), "", [("find_town", '{"tags": "[1, 2"}', True)]),
    (call("find_town", any="NaN"), "", [("find_town", '{"any": "NaN"}', True)]),
    (call("find_town", any='{"a":1}'), "", [("find_town", '{"any": {"a":1}}', True)]),
    # a JSON string is one; any other text of a string is kept as it is
    (call("find_town", city='"Rome"'), "", [("find_town", CITY, True)]),
    (call("find_town", note='"x"'), "", [("find_town", '{"note": "x"}', True)]),
    (
        call("find_town", city='"Rome" or "Oslo"'),
        "",
        [("find_town", r'{"city": "\"Rome\" or \"Oslo\""}', True)],
    ),
    (call("find_town", city="\n a\n\n"), "", [("find_town", r'{"city": "\n a\n\n"}', True)]),
    (call("find_town", city=""), "", [("find_town", '{"city": ""}', True)]),
    (call("find_town", city="a\\b\tß日😀"), "", [("find_town", '{"city": "a\\\\b\\tß日😀"}', True)]),
    (
        call("find_town", city="<b>\n</parameter> x </function> <parameter=n> </tool_call>"),
        "",
        [("find_town", r'{"city": "<b>\n</parameter> x </function> <parameter=n> </tool_call>"}', True)],
    ),
    # blanks are missing, or others than in the template
    (
        "<tool_call><function=find_town><parameter=city>Rome</parameter></function></tool_call>",
        "",
        [("find_town", CITY, True)],
    ),
    (
        "<tool_call> <function=find_town>\r\n<parameter=city>\nRome\n</parameter></function>\n </tool_call>",
        "",
        [("find_town", CITY, True)],
    ),
    # tags are missing
    (f"So: {ROME[12:]}", "So: ", [("find_town", CITY, True)]),
    (ROME[12:-13], "", [("find_town", CITY, True)]),
    (ROME.replace("</function>\n", ""), "", [("find_town", CITY, True)]),
    (ROME.replace("</parameter>\n", ""), "", [("find_town", CITY, True)]),
    (
        call("find_town", city="Rome", n="5").replace("</parameter>\n", "", 1),
        "",
        [("find_town", '{"city": "Rome", "n": 5}', True)],
    ),
    (ROME[:-12] + "so", "\nso", [("find_town", CITY, True)]),
    # cut off
    (ROME[:-14], "", [("find_town", '{"city": "Rome"', False)]),
    (ROME[:-38], "", [("find_town", '{"city": "Rome', False)]),
    (ROME[:-36], "", [("find_town", '{"city": "Rome\\n<', False)]),
    ("<tool_call>\n<function=find_town>\n<param", "", [("find_town", "", False)]),
    ("<tool_call>\n<function=find_town>\n<parameter=n>\n1", "", [("find_town", '{"n": "1', False)]),
    ("<tool_call>\n<function=find", "<tool_call>\n<function=find", []),
    ("a\n\n<tool_ca", "a\n\n<tool_ca", []),
    # not calls
    ("<function=other>", "<function=other>", []),
    ("<tool_call>find_town()</tool_call>", "<tool_call>find_town()</tool_call>", []),
    ('<tool_call>\n{"name": "clock"}\n</tool_call>', '<tool_call>\n{"name": "clock"}\n</tool_call>', []),
    ("<tool_call><function=>", "<tool_call><function=>", []),
    ("<tool_call><function=a\nb>", "<tool_call><function=a\nb>", []),
    (f"<tool_call><{ROME}", "<tool_call><", [("find_town", CITY, True)]),
    (f"<tool_call>{ROME}", "<tool_call>", [("find_town", CITY, True)]),
    ("a < b </function> </parameter> </tool_call>", "a < b </function> </parameter> </tool_call>", []),
    # goes wrong after its name
    ("<tool_call><function=clock>oops", "oops", [("clock", "", False)]),
    ("<tool_call><function=clock><param x", "<param x", [("clock", "", False)]),
    ("<tool_call><function=clock><parameter=a<b>", "<parameter=a<b>", [("clock", "", False)]),
]


@pytest.mark.parametrize(("answer", "text", "calls"), READINGS, ids=range(len(READINGS)))
def test_an_answer_reads_the_same_in_one_piece_and_cut_anywhere(
    answer: str, text: str, calls: list[tuple[str, str, bool]]
) -> None:
    whole = read(answer)
    assert (whole.text, whole.calls) == (text, calls)
    assert read(*answer) == whole
    for cut in range(1, len(answer)):
        assert read(answer[:cut], answer[cut:]) == whole, cut
    for _, arguments, complete in calls:
        if complete:
            assert isinstance(json.loads(arguments), dict)


def test_tool_xml_quotes() -> None:
    """A JSON string is read as one, whether or not the schema says that a string is wanted."""
    answer = case("tool-xml-quotes").input["recipe"].removeprefix("replay ").removesuffix(" in all cuts")
    answer = answer.replace("\\n", "\n")
    assert "\n" in answer
    for city in ({}, {"type": "string"}, {"type": ["string", "null"]}):
        tools = {"find_town": {"type": "object", "properties": {"city": city}}}
        for text, value in [
            ('"/tmp/a"', "/tmp/a"),
            ("/tmp/a", "/tmp/a"),
            (' "a\\n\\"b\\"" ', 'a\n"b"'),
            ('"a" and "b"', '"a" and "b"'),
            ('"half', '"half'),
            ('it is "a"', 'it is "a"'),
        ]:
            said = answer.replace('"/tmp/a"', text)
            for cut in range(len(said) + 1):
                ((name, arguments, complete),) = read(said[:cut], said[cut:], tools=tools).calls
                assert (name, json.loads(arguments), complete) == ("find_town", {"city": value}, True)


def test_an_integer_of_any_length_stays_one() -> None:
    digits = "7" * 5000
    assert argument_json(digits, frozenset({"integer"})) == digits
    assert argument_json("[" * 100_000, frozenset({"array"})) == json.dumps("[" * 100_000)


def test_a_strings_text_is_not_held_back() -> None:
    parser = XmlCallFormat().parser(TOOLS)
    assert parser.push("Hello\n") == [PlainText("Hello")]
    assert parser.push("world") == [PlainText("\nworld")]
    assert parser.push("<tool_call>\n<function=find_town>") == [CallStart("find_town")]
    assert parser.push("\n<parameter=city>\nNew") == [CallArguments('{"city": "New')]
    assert parser.push(" York\n") == [CallArguments(" York")]
    assert parser.push("</par") == []
    assert parser.push("ty>\n</parameter>\n<parameter=n>\n1") == [CallArguments('\\n</party>", "n": ')]
    assert parser.push("2\n</parameter>\n</function>") == [CallArguments("12}"), CallEnd()]
    assert parser.push("\n</tool_call>") == []
    assert parser.flush() == []


def test_random_cuts_of_random_answers_read_the_same() -> None:
    rng = random.Random(7)
    pieces = [
        "<tool_call>",
        "\n",
        "<function=find_town>",
        "<parameter=city>",
        "<parameter=n>",
        "</parameter>",
    ]
    pieces += ["</function>", "</tool_call>", "text ", "\n\n", '"', "<", "5", ROME, "<function=clock>"]
    for _ in range(1500):
        answer = "".join(rng.choices(pieces, k=rng.randint(1, 14)))
        cuts = sorted(rng.choices(range(len(answer) + 1), k=rng.randint(0, 6)))
        parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(*parts) == read(answer), answer


def renderer(path: Path) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(path.read_text(encoding="utf-8"))


TEMPLATES = [renderer(path) for path in (QWEN3_5_CHAT_TEMPLATE, SLICED_CHAT_TEMPLATE)]
# Nothing in the form escapes these: they end a value wherever they stand.
ENDS = re.compile(
    r"</parameter>\s*(<parameter=|</function>|</tool_call>)|</function>\s*</tool_call>|\n<parameter="
)
TEXTS = (
    st.lists(
        st.sampled_from(
            ["a", " ", "\n", '"', "\\", "<", ">", "</", "<parameter", "</parameter>", "</function>"]
        )
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        max_size=8,
    )
    .map("".join)
    .filter(lambda text: not ENDS.search(text))
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>\n"), min_size=1, max_size=8)


def schema_of(value: Any) -> dict[str, Any]:
    kinds = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
    }
    return {"type": kinds.get(type(value), "object")}


def unquoted(value: Any) -> Any:
    """What a value is read as: the template writes a string without quotes, so that its own are taken off."""
    try:
        inner = json.loads(value.strip(" \t\r\n")) if isinstance(value, str) else None
    except ValueError:
        inner = None
    return inner if isinstance(inner, str) else value


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=3),
    TEXTS,
    st.data(),
)
def test_what_the_template_renders_reads_back_in_every_cut(
    calls: list[dict[str, Any]], said: str, data: st.DataObject
) -> None:
    tools = {
        f"f{place}": {
            "type": "object",
            "properties": {name: schema_of(value) for name, value in call.items()},
        }
        for place, call in enumerate(calls)
    }
    message = {
        "role": "assistant",
        "content": said,
        "tool_calls": [
            {"function": {"name": f"f{place}", "arguments": call}} for place, call in enumerate(calls)
        ],
    }
    for template in TEMPLATES:
        rendered = template.render(messages=[{"role": "user", "content": "x"}, message])
        answer = rendered.partition("</think>\n\n")[2].removesuffix("<|im_end|>\n")
        cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=4).map(sorted))
        parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        whole = read(answer, tools=tools)
        assert read(*parts, tools=tools) == whole == read(*answer, tools=tools)
        assert whole.text == said.strip()
        assert [(name, json.loads(arguments), complete) for name, arguments, complete in whole.calls] == [
            (f"f{place}", {name: unquoted(value) for name, value in call.items()}, True)
            for place, call in enumerate(calls)
        ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "<function=f>", "<parameter=a>", "</parameter>", "\n", "x", "<", " "]
        ),
        max_size=14,
    ).map("".join)
)
def test_text_is_never_lost(answer: str) -> None:
    """Whatever is no tag and no blank comes out somewhere."""
    tools = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
    result = read(answer, tools=tools)
    out = result.text + "".join(arguments for _, arguments, _ in result.calls)
    assert out.count("x") == answer.count("x")


@pytest.mark.parametrize(
    ("opening", "flood"),
    [
        ("", "<tool_call>"),
        ("", "<function="),
        ("", "\n\n<tool_call"),
        (ROME, "\n"),
        ("<tool_call><function=", "f"),
        ("<tool_call><function=clock>", "\n"),
        ("<tool_call><function=clock><parameter=a>", "\n</parameter>"),
        ("<tool_call><function=find_town><parameter=city></parameter>", " "),
        ("<tool_call><function=find_town><parameter=city>", "\n<parameter=n"),
        ("<tool_call><function=find_town><parameter=any>", "["),
    ],
    ids=range(10),
)
def test_the_work_is_linear_in_the_answer(opening: str, flood: str) -> None:
    """Of calls of functions, and of the text that each of them looks at again."""

    def work(repeats: int) -> int:
        count = 0

        def saw(frame: FrameType, event: str, _: Any) -> None:
            nonlocal count
            if event == "call":
                count += 1 + len(frame.f_locals.get("held", ""))

        answer = opening + flood * repeats
        sys.setprofile(saw)
        try:
            read(*(answer[place : place + 4] for place in range(0, len(answer), 4)))
        finally:
            sys.setprofile(None)
        return count

    assert work(2000) < 2.1 * work(1000)
