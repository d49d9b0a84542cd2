"""Tools over HTTP for the families that call in XML, on tiny random checkpoints: forced calls are valid
whatever the model would rather write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kaminari.config import DtypeChoice, EngineSettings, Folder, ModelSettings, Settings
from kaminari.engine.engine import Engine
from kaminari.engine.parsing import AnswerSyntax
from kaminari.model.family import ThinkTags
from kaminari.model.xml_calls import XmlCallFormat
from tests.cases.loading import case
from tests.openai_api.harness import HI, client_of, error_of, make_app, post, until_free
from tests.openai_api.test_tools import both, gather, replay, same

RUNS = 51
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a room.",
        "parameters": {
            "type": "object",
            "properties": {
                "guest": {"type": "string", "maxLength": 6},
                "nights": {"type": "integer", "minimum": 1, "maximum": 30},
                "view": {"enum": ["sea", "street", None]},
                "note": {"anyOf": [{"type": "string", "pattern": "^[a-z ]{0,8}$"}, {"type": "null"}]},
                "beds": {"type": "array", "items": {"$ref": "#/$defs/bed"}, "maxItems": 2},
                "quiet": {"type": "boolean"},
            },
            "required": ["guest", "nights", "view"],
            "additionalProperties": False,
            "$defs": {
                "bed": {
                    "type": "object",
                    "properties": {"size": {"enum": [1, 2]}},
                    "required": ["size"],
                    "additionalProperties": False,
                }
            },
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
SCHEMAS = {"book": BOOK["function"]["parameters"], "clock": {"maxProperties": 0}}  # type: ignore[index]
NAMED = {"type": "function", "function": {"name": "book"}}
FORCED = [
    {"tool_choice": NAMED},
    {"tool_choice": "required"},
    {"tool_choice": "required", "parallel_tool_calls": False},
]


@pytest.fixture(scope="module", params=["qwen3_5", "minicpm_v"])
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[Engine]:
    settings = Settings(
        model=ModelSettings(source=Folder(checkpoint(request.param)), dtype=DtypeChoice.FLOAT32),
        engine=EngineSettings(threads=1, slots=8, context=3000, queue_size=200),
    )
    with Engine.load(settings) as loaded:
        yield loaded


def check_calls(choice: dict[str, Any], single: bool) -> int:
    """Check the calls of a forced answer; returns how many of them are whole."""
    message = choice["message"]
    assert message["content"] is None
    calls = message["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    if choice["finish_reason"] == "length":
        calls = calls[:-1]
    else:
        assert choice["finish_reason"] == "tool_calls"
        assert len(calls) == 1 or not single
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])
    return len(calls)


async def test_forced_calls_are_valid_at_any_temperature(engine: Engine) -> None:
    app, _ = make_app(engine)
    async with client_of(app) as client:

        async def ask(run: int) -> int:
            forced = FORCED[run % 3]
            body = {
                "messages": HI,
                "tools": [BOOK, CLOCK],
                "temperature": 0.5 * (run % 4),
                "seed": run,
                **forced,
            }
            response = await client.post("/v1/chat/completions", json={**body, "max_tokens": 400})
            assert response.status_code == 200, response.text
            (choice,) = response.json()["choices"]
            return check_calls(choice, single=forced != FORCED[1])

        whole = await asyncio.gather(*map(ask, range(RUNS)))
    assert sum(whole) >= RUNS
    await until_free(engine)


@pytest.mark.parametrize("fields", FORCED, ids=str)
async def test_a_stream_joins_to_the_whole_answer(engine: Engine, fields: dict[str, Any]) -> None:
    for seed in range(2):
        body = {"messages": HI, "tools": [BOOK, CLOCK], "temperature": 1, "seed": seed, "max_tokens": 200}
        check_calls(await both(engine, **body, **fields), single=fields is not FORCED[1])


async def test_reasoning_comes_before_a_forced_call(engine: Engine) -> None:
    """With a thought of a given length: what is not forced, a random model never ends."""
    body = {"messages": HI, "tools": [BOOK], "tool_choice": NAMED, "temperature": 1, "max_tokens": 30}
    choice = await both(engine, **body, seed=1, chat_template_kwargs={"enable_thinking": True})
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


async def test_any_answer_of_its_own_choice_streams_the_same(engine: Engine) -> None:
    for seed in range(4):
        body = {"messages": HI, "tools": [BOOK], "temperature": 1.2, "seed": seed, "max_tokens": 60}
        choice = await both(engine, **body)
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")


async def test_a_strict_tool_and_a_form_are_enforced(engine: Engine) -> None:
    strict = {**BOOK, "function": {**BOOK["function"], "strict": True}}  # type: ignore[dict-item]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [{"a": 1}]}}}
    for seed in range(2):
        body = {"messages": HI, "temperature": 1.5, "seed": seed, "max_tokens": 250}
        await both(engine, **body, tools=[strict])
        choice = await both(engine, **body, tools=[CLOCK, strict], response_format=form)
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) == {"a": 1}
        else:
            check_calls(choice, single=False)


async def test_a_whole_round_with_reasoning_is_replayed(engine: Engine) -> None:
    body = {"messages": HI, "tools": [BOOK], "tool_choice": NAMED, "temperature": 1, "seed": 4}
    choice = await both(engine, **body, max_tokens=400)
    assert choice["finish_reason"] == "tool_calls"
    turns = [
        *HI,
        {**choice["message"], "reasoning_content": "I book."},
        {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "Booked."},
    ]
    again = {"messages": turns, "tools": [BOOK], "max_tokens": 1, "return_token_ids": True}
    shown = (await post(engine, **again)).json()["prompt_token_ids"]
    text = engine.decode(shown)
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert "<think>\nI book.\n</think>\n\n<tool_call>\n<function=book>\n" in text
    assert f"<parameter=nights>\n{arguments['nights']}\n</parameter>\n" in text
    assert "<tool_response>\nBooked.\n</tool_response>" in text


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "anyOf": [{"properties": {"a": {}}}]},
        {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    ],
    ids=str,
)
async def test_a_schema_that_cannot_be_enforced_is_a_400_only_where_it_has_to_be(
    engine: Engine, parameters: dict[str, Any]
) -> None:
    tools = [CLOCK, {"type": "function", "function": {"name": "f", "parameters": parameters}}]
    refused = await post(engine, tools=tools, tool_choice="required", max_tokens=1)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == "tools[1].function.parameters"
    assert (await post(engine, tools=tools, max_tokens=1)).status_code == 200


async def test_tool_args_malformed_history(engine: Engine) -> None:
    """Chosen: the raw text is kept, as one parameter."""
    assert (
        await post(engine, **case("tool-args-malformed-history").request(engine.info.model))
    ).status_code == 200


@pytest.mark.parametrize("case_id", ["tool-stream-dup", "tool-stream-index"])
async def test_the_requests_of_the_cases_are_answered(engine: Engine, case_id: str) -> None:
    body = case(case_id).request(engine.info.model)
    streamed = gather((await post(engine, **body)).text)
    whole = await post(engine, **{**body, "stream": False})
    assert whole.status_code == 200
    same(whole.json()["choices"][0], streamed)


async def test_tool_xml_quotes() -> None:
    """A JSON string is read as one, whether or not the schema says that a string is wanted."""
    answer = case("tool-xml-quotes").input["recipe"].removeprefix("replay ").removesuffix(" in all cuts")
    answer = answer.replace("\\n", "\n")
    for city in ({}, {"type": "string"}):
        syntax = AnswerSyntax(XmlCallFormat(), {"find_town": {"properties": {"city": city}}})
        for pieces in ([answer], list(answer), [answer[:40], answer[40:]]):
            choice = await both(replay(syntax, *pieces), tools=[CLOCK])
            (call,) = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "/tmp/a"}
            assert choice["message"]["content"] is None


async def test_reasoning_and_calls_are_told_apart() -> None:
    syntax = AnswerSyntax(
        XmlCallFormat(), {"clock": {}}, think=ThinkTags("<think>", "</think>"), thinking=True
    )
    answer = "hm <tool_call>\n</think>\n\nI look.\n\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"
    choice = await both(replay(syntax, *answer), tools=[CLOCK])
    assert choice["message"]["reasoning_content"] == "hm <tool_call>"
    assert choice["message"]["content"] == "I look."
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [
        {"name": "clock", "arguments": "{}"}
    ]
