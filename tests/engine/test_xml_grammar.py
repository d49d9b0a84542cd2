"""Calls in XML under the grammar: whatever it lets pass is read as arguments that the schema allows."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
import torch

from kaminari.engine.answer_grammar import answer_grammar
from kaminari.engine.constraints import Constraint
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.string_patterns import FORMATS
from kaminari.engine.token_mask import token_mask
from kaminari.engine.tools import NamedTool, Tool, ToolUse
from kaminari.model.family import ThinkTags
from kaminari.model.xml_calls import XmlCallFormat
from tests.engine.random_schemas import random_schema
from tests.engine.test_answer_grammar import COMPILER, END, TOKENIZER, VOCABULARY
from tests.model.reading import read_pieces

CALLS = XmlCallFormat()
CLOSE = "\n</parameter>\n"


def tool(parameters: dict[str, Any] | None, name: str = "f", **fields: Any) -> Tool:
    return Tool(name, {"type": "function", "function": {"name": name}}, parameters, **fields)


def constraint_of(*tools: Tool, think: ThinkTags | None = None, **fields: Any) -> Constraint:
    asked = Conversation(Conversation.ask("x").messages, tools=tools, **fields)
    syntax = AnswerSyntax(CALLS, single_call=not asked.parallel_tool_calls, think=think, thinking=bool(think))
    grammar = answer_grammar(asked, syntax, COMPILER)
    assert grammar is not None
    return grammar.new()


def allowed(constraint: Constraint) -> list[int]:
    mask = token_mask([constraint], VOCABULARY, torch.device("cpu"))
    assert mask is not None
    tokens: list[int] = mask[0].nonzero().flatten().tolist()
    return tokens


LIKELY = [TOKENIZER.token_to_id(character) for character in "12b"]


def drawn(constraint: Constraint, rng: random.Random, hurry: float = 0.3, limit: int = 4000) -> str:
    """A random answer. Few tokens close a value or satisfy a pattern, so these are tried more often."""
    made: list[int] = []
    hurried = ""
    for _ in range(limit):
        tokens = allowed(constraint)
        assert tokens, TOKENIZER.decode(made)
        if not hurried and rng.random() < hurry:
            hurried = CLOSE
        wanted = TOKENIZER.encode(hurried[0]).ids[0] if hurried else rng.choice(LIKELY)
        hurried = hurried[1:] if wanted in tokens else ""
        token = wanted if wanted in tokens and (hurried or rng.random() < 0.5) else rng.choice(tokens)
        if token == END:
            break
        made.append(token)
        constraint.accept(token)
        assert not constraint.failed, TOKENIZER.decode(made)
        if constraint.finished:
            break
    else:
        raise AssertionError(f"no end after {limit} tokens: {TOKENIZER.decode(made)}")
    return TOKENIZER.decode(made)


def takes(constraint: Constraint, text: str) -> bool:
    """Whether an answer may be this text and end there."""
    for character in text:
        for token in TOKENIZER.encode(character).ids:
            if token not in allowed(constraint):
                return False
            constraint.accept(token)
    return constraint.finished or END in allowed(constraint)


def spelled(name: str = "f", **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def arguments_of(text: str, *tools: Tool) -> list[Any]:
    parsed = read_pieces(CALLS.parser({each.name: each.arguments for each in tools}), text)
    assert parsed.text == ""
    assert all(complete for _, _, complete in parsed.calls)
    return [json.loads(arguments) for _, arguments, _ in parsed.calls]


VALUES: list[tuple[Any, list[str], list[str]]] = [
    # schema of a value, texts that it may have, and some that it may not
    (
        {"type": "string"},
        ["", "a", '"a"', "5", "a\nb\n", "<a> & \\"],
        ["</parameter>", "a</function>", "<parameter=x>"],
    ),
    ({}, ["", "a", '{"a": [', "5"], ["</parameter>"]),
    (True, ["a"], []),
    ({"type": "integer", "maximum": 9}, ["5", "-3"], ["10", "x", "", '"5"', "5.5"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "yes", '"true"']),
    ({"type": "array", "items": {"type": "string"}}, ["[]", '["a", "</parameter>"]'], ["a", "[1]"]),
    ({"enum": ["red", 'q"', "two\nlines"]}, ["red", 'q"', "two\nlines"], ["green", '"red"', "re"]),
    ({"enum": ["1", 2, None]}, ["2", "null"], ["3", "1"]),
    ({"enum": ["2", 2]}, ["2"], ["3"]),
    ({"const": "x"}, ["x"], ["y"]),
    ({"const": {"a": 1}}, ['{"a":1}'], ["{}"]),
    ({"type": "string", "maxLength": 3, "minLength": 1}, ["abc", "ß日😀"], ["", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
    ({"type": "string", "pattern": "[0-9]{2}"}, ["x12y", "12"], ["1"]),
    ({"type": "string", "pattern": "^a|b$"}, ["axx", "xxb"], ["xax"]),
    ({"type": "string", "pattern": "^(x|[$^|])\\$$"}, ["x$", "|$"], ["x"]),
    ({"type": "string", "pattern": "^a", "maxLength": 2}, ["ab"], ["abc", "ba"]),
    ({"type": ["string", "null"]}, ["null", "a", "5"], []),
    ({"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]}, ["null", "abc"], ["5"]),
    ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}, ["7", "a", "-a"], ["4", " 4", "4a"]),
    ({"anyOf": [{"type": "string"}, {"type": "object"}]}, ["a", '{"a":1}'], ["{a"]),
    ({"anyOf": [{"type": "string"}, {"const": True}]}, ["a", "true"], ["false", "False"]),
    ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}, ["a", "b"], ["c"]),
    ({"oneOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]}, ["a", "12"], ["ab"]),
    ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, ["a"], ["ab"]),
    ({"$ref": "#/$defs/short"}, ["ab"], ["abc"]),
    ({"allOf": [{"$ref": "#/$defs/short"}], "description": "d"}, ["ab"], ["abc"]),
    (
        {"anyOf": [{"$ref": "#/$defs/short"}, {"$ref": "#/$defs/tree"}]},
        ["ab", '{"t":{}}'],
        ["abc", '{"t":1}'],
    ),
    ({"$ref": "#/$defs/tree"}, ['{"t":{"t":{}}}'], ['{"t":5}', "a"]),
    ({"type": "string", "minLength": 3}, ["abc", 'a"b', '"a" or "b"'], ["ab", '"a"', '"abc"']),
    ({"minLength": 2}, ["ab"], ["a", '"a"', "5", "{}"]),
    ({"items": {"type": "integer"}}, ["[1]"], ['["a"]', "a"]),
]
DEFS = {
    "short": {"type": "string", "maxLength": 2},
    "tree": {"type": "object", "properties": {"t": {"$ref": "#/$defs/tree"}}, "additionalProperties": False},
}


@pytest.mark.parametrize(("schema", "right", "wrong"), VALUES, ids=range(len(VALUES)))
def test_a_value_has_the_texts_that_are_read_as_its_schema_says(
    schema: Any, right: list[str], wrong: list[str]
) -> None:
    offered = tool({"properties": {"v": schema}, "required": ["v"], "$defs": DEFS})
    for text in right:
        answer = spelled(v=text)
        assert takes(constraint_of(offered, tool_choice=ToolUse.REQUIRED), answer), text
        (arguments,) = arguments_of(answer, offered)
        jsonschema.validate(arguments, {**offered.arguments, "type": "object"})
    for text in wrong:
        assert not takes(constraint_of(offered, tool_choice=ToolUse.REQUIRED), spelled(v=text)), text
    rng = random.Random(5)
    for _ in range(12):
        (arguments,) = arguments_of(
            drawn(constraint_of(offered, tool_choice=NamedTool("f"), parallel_tool_calls=False), rng), offered
        )
        jsonschema.validate(arguments, {**offered.arguments, "type": "object"})


def test_random_calls_of_random_schemas_validate() -> None:
    rng = random.Random(11)
    for _ in range(150):
        offered = tool(random_schema(rng))
        constraint = constraint_of(offered, tool_choice=ToolUse.REQUIRED, parallel_tool_calls=False)
        (arguments,) = arguments_of(drawn(constraint, rng), offered)
        jsonschema.validate(arguments, offered.arguments)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_strings_of_a_format_are_of_that_format(name: str) -> None:
    offered = tool({"properties": {"v": {"type": "string", "format": name}}, "required": ["v"]})
    rng = random.Random(3)
    for _ in range(15):
        constraint = constraint_of(offered, tool_choice=ToolUse.REQUIRED, parallel_tool_calls=False)
        (arguments,) = arguments_of(drawn(constraint, rng, hurry=0.5), offered)
        jsonschema.validate(
            arguments["v"], {"format": name}, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )


CITY = {
    "type": "object",
    "properties": {"c": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["c"],
}
TOWN, CLOCK = tool(CITY, "town"), tool(None, "clock")
ROME, NOON = spelled("town", c="Rome"), spelled("clock")


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        (
            {"tool_choice": ToolUse.REQUIRED},
            [ROME, NOON, f"{ROME}\n{NOON}", spelled("town", c="Rome", n="5")],
            [
                "",
                "yes",
                f"{ROME}{NOON}",
                f"So. {ROME}",
                spelled("town"),
                spelled("town", n="5", c="Rome"),
                spelled("clock", a="1"),
                spelled("other"),
                ROME[:-1],
            ],
        ),
        ({"tool_choice": ToolUse.REQUIRED, "parallel_tool_calls": False}, [ROME], [f"{ROME}\n{NOON}"]),
        ({"tool_choice": NamedTool("town"), "parallel_tool_calls": False}, [ROME], [NOON, "yes"]),
        (
            {"tools": (tool(CITY, "town", strict=True), CLOCK)},
            ["", "text", ROME, f"So.\n\n{ROME}", f"{ROME}\n{NOON} and", "a < b", spelled("clock", a="1")],
            [spelled("town", n="x"), f"So. {spelled('town')}", spelled("other")],
        ),
        (
            {"tool_choice": ToolUse.REQUIRED, "think": ThinkTags("<think>", "</think>")},
            [f"hm</think>\n\n{ROME}", f"</think>{NOON}"],
            [ROME, "hm</think>yes"],
        ),
        (
            {"tools": (tool({"type": "object"}, "any"),), "tool_choice": ToolUse.REQUIRED},
            [spelled("any"), spelled("any", a="1", b="x\ny")],
            [spelled("any", **{"a b": "1"})],
        ),
        (
            {
                "tools": (tool({"additionalProperties": {"type": "integer"}}, "any"),),
                "tool_choice": ToolUse.REQUIRED,
            },
            [spelled("any", a="1")],
            [spelled("any", a="x")],
        ),
        (
            {
                "tools": (
                    tool({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {}, "required": ["x"]}}}, "any"),
                ),
                "tool_choice": ToolUse.REQUIRED,
            },
            [spelled("any", x="1")],
            [spelled("any")],
        ),
    ],
    ids=range(8),
)
def test_an_answer_may_be_what_was_asked_for(
    fields: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    tools = fields.pop("tools", (TOWN, CLOCK))
    for text in right:
        assert takes(constraint_of(*tools, **fields), text), text
    for text in wrong:
        assert not takes(constraint_of(*tools, **fields), text), text


@pytest.mark.parametrize(
    "parameters",
    [
        {"anyOf": [{"properties": {}}]},
        {"properties": {"a": {"type": "string"}}, "minProperties": 1},
        {"properties": {"a>b": {}}},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {"a": {"type": "string", "not": {"const": "x"}}}},
        {"properties": {"a": {"type": "string", "pattern": "a^b"}}},
        {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
        {"properties": {"a": {"type": "string", "maxLength": 1 << 20}}},
        {"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "format": "date"}]}}},
        {"properties": {"a": {"allOf": [{"type": "string", "maxLength": 1}, {"maxLength": 2}]}}},
        {"properties": {"a": {"type": "string", "enum": []}}, "required": ["a"]},
        {"properties": {"a": {"enum": ["</parameter>"]}}, "required": ["a"]},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"not": {}}}, "required": ["a"]},
        {"$ref": "#"},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_enforced_are_refused_and_name_their_tool(
    parameters: dict[str, Any],
) -> None:
    tools = (CLOCK, tool(parameters, field="tools[1]"))
    with pytest.raises(RequestError) as refusal:
        constraint_of(*tools, tool_choice=ToolUse.REQUIRED)
    assert refusal.value.field == "tools[1].function.parameters"


def test_a_schema_that_combines_without_end_is_refused_soon() -> None:
    deep: dict[str, Any] = {"anyOf": []}
    for _ in range(40):
        deep = {"anyOf": [deep, deep, {"type": "string"}]}
    with pytest.raises(RequestError, match="combines too many"):
        constraint_of(tool({"properties": {"a": deep}}), tool_choice=ToolUse.REQUIRED)
