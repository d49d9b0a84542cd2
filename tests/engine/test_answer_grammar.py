"""One grammar for a form, calls and reasoning: which texts it takes, and where they may end."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from kaminari.engine.answer_format import ChoiceFormat, JsonFormat
from kaminari.engine.answer_grammar import answer_grammar
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar import GrammarCompiler
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.token_mask import token_mask
from kaminari.engine.tools import NamedTool, Tool, ToolUse
from kaminari.model.family import ThinkTags
from kaminari.model.qwen3_vl.calls import HermesCallFormat
from tests.checkpoints import build_tokenizer

TOKENIZER: Tokenizer = build_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")
VOCABULARY = TOKENIZER.get_vocab_size(with_added_tokens=True)
COMPILER = GrammarCompiler(TOKENIZER, {END})
CALLS = HermesCallFormat()
TAGS = ThinkTags("<think>", "</think>")

CITY = {
    "type": "object",
    "properties": {"c": {"type": "integer"}},
    "required": ["c"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Tool:
    return Tool(name, {"type": "function", "function": {"name": name}}, parameters, **fields)


TOOLS = (tool("town", CITY), tool("clock"))


def call(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


TOWN, CLOCK, WRONG = call("town", {"c": 1}), call("clock", {}), call("town", {"c": "x"})


def takes(conversation: Conversation, text: str, **syntax: Any) -> bool:
    """Whether an answer may be this text and end there."""
    syntax = {"calls": CALLS if conversation.offered_tools else None, **syntax}
    grammar = answer_grammar(conversation, AnswerSyntax(**syntax), COMPILER)
    if grammar is None:
        return True
    constraint = grammar.new()
    for character in text:
        for token in TOKENIZER.encode(character).ids:
            mask = token_mask([constraint], VOCABULARY, torch.device("cpu"))
            assert mask is not None
            if not mask[0, token]:
                return False
            constraint.accept(token)
    mask = token_mask([constraint], VOCABULARY, torch.device("cpu"))
    assert mask is not None
    return constraint.finished or bool(mask[0, END])


def asks(**fields: Any) -> Conversation:
    return Conversation(Conversation.ask("x").messages, **{"tools": TOOLS, **fields})


FORM = ChoiceFormat(("yes",))


@pytest.mark.parametrize(
    ("fields", "syntax", "right", "wrong"),
    [
        ({}, {}, ["anything", WRONG], []),
        ({"tool_choice": ToolUse.NONE, "answer_format": FORM}, {}, ["yes"], ["no", CLOCK]),
        ({"answer_format": FORM}, {}, ["yes", CLOCK, WRONG, f"{CLOCK}\n{CLOCK}"], ["no", f"yes{CLOCK}"]),
        (
            {"tool_choice": ToolUse.REQUIRED},
            {},
            [TOWN, CLOCK, f"{TOWN}\n{CLOCK}"],
            ["", "yes", WRONG, f"{TOWN}{CLOCK}", call("other", {}), call("clock", {"a": 1})],
        ),
        ({"tool_choice": ToolUse.REQUIRED}, {"single_call": True}, [TOWN], [f"{TOWN}\n{CLOCK}"]),
        ({"tool_choice": NamedTool("town")}, {"single_call": True}, [TOWN], [CLOCK, WRONG, "yes"]),
        ({"tool_choice": NamedTool("town"), "answer_format": FORM}, {"single_call": True}, [TOWN], ["yes"]),
        (
            {"tools": (tool("town", CITY, strict=True), tool("clock"))},
            {},
            ["", "text", TOWN, f"So.\n{TOWN}", f"{TOWN}\n{CLOCK} and", "a < b"],
            [WRONG, f"So. {WRONG}", call("other", {})],
        ),
        ({"answer_format": FORM, "tools": ()}, {"think": TAGS}, ["yes", "<think>hm</think>\n\nyes"], ["hm"]),
        (
            {"answer_format": FORM, "tools": ()},
            {"think": TAGS, "thinking": True},
            ["hm\n</think>\n\nyes", "</think>yes"],
            ["yes", "hm</think>no"],
        ),
        (
            {"tool_choice": ToolUse.REQUIRED},
            {"think": TAGS, "thinking": True},
            [f"hm</think>\n\n{TOWN}"],
            ["hm</think>yes", TOWN],
        ),
    ],
    ids=range(11),
)
def test_an_answer_may_be_what_was_asked_for(
    fields: dict[str, Any], syntax: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert takes(asks(**fields), text, **syntax), text
    for text in wrong:
        assert not takes(asks(**fields), text, **syntax), text


def test_a_schema_that_cannot_be_enforced_names_its_tool() -> None:
    tools = (
        tool("a", CITY, field="tools[0]"),
        tool("b", {"properties": {"x": {"not": {}}}}, field="tools[1]"),
    )
    assert answer_grammar(asks(tools=tools), AnswerSyntax(CALLS), COMPILER) is None
    with pytest.raises(RequestError) as refusal:
        answer_grammar(asks(tools=tools, tool_choice=ToolUse.REQUIRED), AnswerSyntax(CALLS), COMPILER)
    assert refusal.value.field == "tools[1].function.parameters"
    # a form leaves tools that are not strict unenforced, but for being objects
    form = JsonFormat({"type": "object"})
    assert answer_grammar(asks(tools=tools, answer_format=form), AnswerSyntax(CALLS), COMPILER) is not None
