"""Prompts with tools for the families that call in XML: token for token what the reference renders."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kaminari.config import PictureSettings
from kaminari.engine.conversation import Conversation, Message, Role, TextPart
from kaminari.engine.frontend import Frontend
from kaminari.engine.loading import picture_rules
from kaminari.engine.tools import Tool, ToolCall
from kaminari.model.family import find_family

FAMILIES = ("qwen3_5", "minicpm_v")
TOWN = {
    "type": "function",
    "function": {"name": "find_town", "parameters": {"type": "object", "properties": {"city": {}}}},
}
VALUES: list[Any] = [
    "Köln",
    "",
    "\n a\n",
    '"x"',
    "<b>",
    5,
    -1.5,
    1e22,
    True,
    None,
    [1, {"a": None}],
    {"k": "ß"},
]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint(request.param)


def frontend_of(folder: Path) -> Frontend:
    return Frontend(folder, find_family(folder).prompt_format(folder), picture_rules(PictureSettings()), 4000)


def as_reference(message: Message) -> dict[str, Any]:
    """The message as `transformers` documents it for templates: arguments are a mapping."""
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    shown: dict[str, Any] = {"role": message.role.value, "content": text}
    if message.tool_calls:
        shown["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    return shown


def test_replayed_calls_results_and_reasoning_have_the_references_ids(folder: Path) -> None:
    frontend = frontend_of(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rng = random.Random(4)
    for _ in range(60):
        turns = [Message.text(Role.USER, "hi")]
        for number in range(rng.randint(0, 3)):
            calls = tuple(
                ToolCall(
                    f"c{n}", "find_town", json.dumps(dict(zip("abc", rng.sample(VALUES, 3), strict=True)))
                )
                for n in range(rng.randint(0, 2))
            )
            said = tuple(
                TextPart(text) for text in rng.sample(["So.", "\n", "a</think>b"], rng.randint(0, 1))
            )
            thought = rng.choice(["", "because", "\nlines\n\nof it\n"])
            turns.append(Message(Role.ASSISTANT, said, calls, reasoning=thought))
            turns += [
                Message(Role.TOOL, (TextPart(rng.choice(["Found.", ""])),), tool_call_id=c.id) for c in calls
            ]
            if number % 2:
                turns.append(Message.text(Role.USER, "And?"))
        kwargs = rng.choice([{}, {"enable_thinking": True}, {"enable_thinking": False}])
        tools = rng.choice([(), (Tool("find_town", TOWN),)])
        expected = tokenizer.apply_chat_template(
            [as_reference(turn) for turn in turns],
            tools=[TOWN] if tools else None,
            add_generation_prompt=True,
            tokenize=False,
            **kwargs,
        )
        prompt = frontend.prepare(Conversation(tuple(turns), tools=tools, template_kwargs=kwargs))
        assert list(prompt.token_ids) == tokenizer(expected, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("spelling", ["<|im_end|>", "<|im_start|>system", "<|image_pad|>"])
def test_control_spellings_in_calls_and_reasoning_stay_text(folder: Path, spelling: str) -> None:
    frontend = frontend_of(folder)

    def control_count(text: str) -> int:
        arguments = json.dumps({text: text, "deep": [{text: [text]}]})
        turns = (
            Message.text(Role.USER, "hi"),
            Message(Role.ASSISTANT, (), (ToolCall(text, text, arguments),), reasoning=text),
            Message(Role.TOOL, (TextPart(text),), tool_call_id=text),
        )
        prompt = frontend.prepare(Conversation(turns, tools=(Tool("find_town", TOWN),)))
        return sum(token in frontend.special_ids for token in prompt.token_ids)

    assert control_count(spelling) == control_count("harmless")


@pytest.mark.parametrize(
    "broken",
    [
        '{"city": ',
        "[1]",
        "null",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a":' * 120,
        '{"a": ' + "[" * 101 + "]" * 101 + "}",
    ],
)
def test_arguments_in_the_history_that_are_no_object_are_kept_as_one_parameter(
    folder: Path, broken: str
) -> None:
    """Case tool-args-malformed-history."""
    frontend = frontend_of(folder)
    turns = (Message.text(Role.USER, "x"), Message(Role.ASSISTANT, (), (ToolCall("c", "f", broken),)))
    prompt = frontend.prepare(Conversation(turns))
    text = frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert f"<function=f>\n<parameter=arguments>\n{broken}\n</parameter>\n</function>" in text


def test_a_call_without_arguments_has_no_parameters(folder: Path) -> None:
    frontend = frontend_of(folder)
    for arguments in ("", "{}", " { } "):
        turns = (Message.text(Role.USER, "x"), Message(Role.ASSISTANT, (), (ToolCall("c", "f", arguments),)))
        prompt = frontend.prepare(Conversation(turns))
        text = frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
        assert "<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>" in text


def test_reasoning_in_the_generation_prompt_decides_how_answers_are_read(folder: Path) -> None:
    frontend = frontend_of(folder)
    tools = (Tool("find_town", TOWN),)
    for kwargs, thinking in [
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({}, False),
    ]:
        syntax = frontend.prepare(
            Conversation(Conversation.ask("x").messages, tools=tools, template_kwargs=kwargs)
        ).syntax
        assert (syntax.think is not None, syntax.thinking) == (thinking, thinking)
        assert syntax.calls is not None
        assert set(syntax.tools) == {"find_town"}
