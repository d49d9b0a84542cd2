"""Tools over HTTP: how they reach the prompt, how calls come back, and the cases about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.conversation import Role
from kaminari.engine.engine import Engine
from kaminari.engine.events import ChoiceFinished, Event, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.tools import NamedTool, ToolCall, ToolUse
from kaminari.model.family import ThinkTags
from kaminari.model.qwen3_vl.calls import HermesCallFormat
from tests.cases.loading import case
from tests.openai_api.fake_engine import FakeEngine, finished
from tests.openai_api.harness import HI, error_of, events_of, post, serving

NAME = "kaminari-demo"
TOWN = {
    "type": "function",
    "function": {
        "name": "find_town",
        "description": "Finds a town.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "n": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "find_town"}}
CALL = '<tool_call>\n{"name": "find_town", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=4, context=2000)
    )
    with Engine.load(settings) as loaded:
        yield loaded


def replay(syntax: AnswerSyntax, *pieces: str, reason: FinishReason = FinishReason.TOOL_CALLS) -> FakeEngine:
    """An engine whose answer is these pieces of text."""

    def script(_: SamplingParams) -> list[list[Event]]:
        reader = syntax.reader(0)
        steps: list[list[Event]] = [[*reader.push(piece, (number,))] for number, piece in enumerate(pieces)]
        return [*steps, [*reader.flush(), ChoiceFinished(0, reason), finished(len(pieces))]]

    return FakeEngine(script)


@dataclass
class Streamed:
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None


def gather(text: str) -> Streamed:
    """What a client makes of a stream, with checks of the deltas' rules."""
    result = Streamed()
    for chunk in events_of(text):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            result.content += delta.get("content", "")
            result.reasoning += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(result.calls):
                    assert call["type"] == "function"
                    result.calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                else:
                    assert call["index"] == len(result.calls) - 1
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                result.calls[-1]["arguments"] += call["function"]["arguments"]
            result.reason = choice["finish_reason"]
    return result


def same(whole: dict[str, Any], streamed: Streamed) -> None:
    """The joined stream is the whole answer, but for the calls' ids."""
    message = whole["message"]
    assert streamed.content == (message["content"] or "")
    assert streamed.reasoning == message.get("reasoning_content", "")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert [{"name": c["name"], "arguments": c["arguments"]} for c in streamed.calls] == calls
    assert streamed.reason == whole["finish_reason"]


async def both(engine: Any, **body: Any) -> dict[str, Any]:
    """The one choice of an answer, after a check that its stream is the same."""
    response = await post(engine, **body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    same(choice, gather((await post(engine, **body, stream=True)).text))
    return choice


async def test_tools_reach_the_engine() -> None:
    fake = FakeEngine()
    strict = {**TOWN, "function": {**TOWN["function"], "strict": True}}
    assert (await post(fake, tools=[strict, CLOCK], parallel_tool_calls=False)).status_code == 200
    seen = fake.conversations[0]
    assert [tool.name for tool in seen.tools] == ["find_town", "clock"]
    assert [tool.strict for tool in seen.tools] == [True, False]
    assert seen.tools[0].definition == TOWN
    assert seen.tools[1].parameters is None
    assert (seen.tool_choice, seen.parallel_tool_calls) == (ToolUse.AUTO, False)
    for sent, choice in [
        ("none", ToolUse.NONE),
        ("required", ToolUse.REQUIRED),
        (NAMED, NamedTool("find_town")),
    ]:
        assert (await post(fake, tools=[TOWN], tool_choice=sent)).status_code == 200
        assert fake.conversations[-1].tool_choice == choice


async def test_calls_and_results_in_the_history_reach_the_engine() -> None:
    fake = FakeEngine()
    called = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find_town", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [called],
            "refusal": None,
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Found."},
    ]
    assert (await post(fake, messages=messages)).status_code == 200
    _, assistant, result = fake.conversations[0].messages
    assert assistant.tool_calls == (ToolCall("c1", "find_town", '{"city": "Rome"}'),)
    assert assistant.parts == ()
    assert (result.role, result.tool_call_id) == (Role.TOOL, "c1")


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (function(name="two words"), "tools[0].function.name"),
        (function(name="f\n"), "tools[0].function.name"),
        (function(name=""), "tools[0].function.name"),
        (function(parameters=[]), "tools[0].function.parameters"),
        (function(strict="yes"), "tools[0].function.strict"),
        (function(arguments={}), "tools[0].function.arguments"),
        ({"tools": [TOWN] * 129}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
    ],
    ids=str,
)
async def test_wrong_tools_are_a_400_that_names_the_field(fields: dict[str, Any], param: str) -> None:
    fake = FakeEngine()
    response = await post(fake, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert fake.conversations == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOWN, TOWN]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice"),
        ({**function(parameters={"not": {}}), "tool_choice": "required"}, "tools[0].function.parameters"),
        (function(parameters={"not": {}}, strict=True), "tools[0].function.parameters"),
        (function(description="x" * 200_000), "tools"),
    ],
)
async def test_tools_that_cannot_be_offered_are_a_400(
    engine: Engine, fields: dict[str, Any], param: str
) -> None:
    response = await post(engine, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("levels", [101, 900])
async def test_deep_values_are_refused_and_nothing_overflows(engine: Engine, levels: int) -> None:
    deep: dict[str, Any] = {}
    for _ in range(levels):
        deep = {"a": deep}
    for fields, param in [
        (function(parameters=deep), "tools"),
        ({"chat_template_kwargs": deep}, "chat_template_kwargs"),
        ({"structured_outputs": {"json": deep}}, "structured_outputs.json"),
    ]:
        response = await post(engine, **fields)
        assert response.status_code == 400
        assert error_of(response)["param"] == param


CALLS = AnswerSyntax(HermesCallFormat())


async def test_tool_stream_dup() -> None:
    answer = (
        case("tool-stream-dup").input["recipe"].removeprefix("replay ").removesuffix(" cut at every byte")
    )
    arguments = '{"n":23,"city":"QX\\"7TR2"}'
    for pieces in ([answer], list(answer), [answer[:40], answer[40:]]):
        choice = await both(replay(CALLS, *pieces), tools=[TOWN])
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "find_town", "arguments": arguments}
    assert json.loads(arguments) == {"n": 23, "city": 'QX"7TR2'}


async def test_tool_stream_index() -> None:
    other = CALL.replace("Rome", "Oslo")
    choice = await both(replay(CALLS, *f"Both.\n{CALL}\n{other}"), tools=[TOWN])
    calls = choice["message"]["tool_calls"]
    assert choice["message"]["content"] == "Both."
    assert [json.loads(call["function"]["arguments"])["city"] for call in calls] == ["Rome", "Oslo"]
    assert len({call["id"] for call in calls}) == 2
    assert {call["type"] for call in calls} == {"function"}


async def test_tool_stream_lost() -> None:
    choice = await both(replay(CALLS, CALL + "\n" + CALL), tools=[TOWN])
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [
        '{"city": "Rome"}'
    ] * 2


async def test_reasoning_has_a_field_of_its_own() -> None:
    syntax = AnswerSyntax(HermesCallFormat(), think=ThinkTags("<think>", "</think>"), thinking=True)
    choice = await both(replay(syntax, *f"hm, yes\n</think>\n\nI look.\n{CALL}"), tools=[TOWN])
    assert choice["message"]["reasoning_content"] == "hm, yes"
    assert choice["message"]["content"] == "I look."
    assert len(choice["message"]["tool_calls"]) == 1


async def test_without_reasoning_there_is_no_such_field(engine: Engine) -> None:
    response = await post(engine, messages=HI, temperature=0, max_tokens=4)
    assert "reasoning_content" not in response.json()["choices"][0]["message"]
    assert "tool_calls" not in response.json()["choices"][0]["message"]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("fields", "names", "most"),
    [
        ({"tool_choice": NAMED}, {"find_town"}, 1),
        ({"tool_choice": NAMED, "parallel_tool_calls": False}, {"find_town"}, 1),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"find_town", "clock"}, 1),
        ({"tool_choice": "required"}, {"find_town", "clock"}, 128),
    ],
)
async def test_forced_calls_are_calls_with_valid_arguments(
    engine: Engine, fields: dict[str, Any], names: set[str], most: int, temperature: float
) -> None:
    body = {"messages": HI, "tools": [TOWN, CLOCK], "temperature": temperature, "seed": 3, **fields}
    choice = await both(engine, **body, max_tokens=150)
    calls = choice["message"]["tool_calls"]
    assert 1 <= len(calls) <= most
    if choice["finish_reason"] == "length":
        calls = calls[:-1]
    else:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
    for call in calls:
        assert call["function"]["name"] in names
        arguments = json.loads(call["function"]["arguments"])
        schema = (
            TOWN["function"]["parameters"]
            if call["function"]["name"] == "find_town"
            else {"maxProperties": 0}
        )
        jsonschema.validate(arguments, schema)


async def test_a_call_that_a_stop_string_cuts_ends_with_stop(engine: Engine) -> None:
    schema = {"properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    fields = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    choice = await both(engine, **fields, stop=['"a"'])
    assert choice["finish_reason"] == "stop"
    choice = await both(engine, **fields)
    assert choice["finish_reason"] == "tool_calls"


async def test_a_form_and_tools_allow_either(engine: Engine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [{"a": 1}]}}}
    for seed in range(3):
        body = {"messages": HI, "tools": [CLOCK], "temperature": 1.5, "seed": seed, "response_format": form}
        choice = await both(engine, **body, max_tokens=100)
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) == {"a": 1}
        elif choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"][0]["function"]["name"] == "clock"


async def test_the_choice_none_hides_the_tools(engine: Engine) -> None:
    body = {"messages": HI, "max_tokens": 1, "return_token_ids": True}
    plain = (await post(engine, **body)).json()["prompt_token_ids"]
    assert (await post(engine, **body, tools=[TOWN], tool_choice="none")).json()["prompt_token_ids"] == plain
    assert len((await post(engine, **body, tools=[TOWN])).json()["prompt_token_ids"]) > len(plain)


async def test_tool_args_malformed_history(engine: Engine) -> None:
    """Chosen: the raw text is kept."""
    body = case("tool-args-malformed-history").request(NAME)
    assert (await post(engine, **body)).status_code == 200


@pytest.mark.parametrize("case_id", ["tool-stream-dup", "tool-stream-index"])
async def test_the_requests_of_the_cases_are_answered(engine: Engine, case_id: str) -> None:
    body = case(case_id).request(NAME)
    streamed = gather((await post(engine, **body)).text)
    whole = await post(engine, **{**body, "stream": False})
    assert whole.status_code == 200
    same(whole.json()["choices"][0], streamed)


class find_town(BaseModel):
    city: bool


def test_the_sdk_runs_a_round_with_a_tool(engine: Engine) -> None:
    """`parse` sends strict schemas; the result goes back and is answered."""
    tool = openai.pydantic_function_tool(find_town)
    with (
        serving(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        turns: list[Any] = [{"role": "user", "content": "Look it up."}]
        options: dict[str, Any] = {"model": NAME, "tools": [tool], "tool_choice": "required", "seed": 2}
        parsed = client.chat.completions.parse(messages=turns, parallel_tool_calls=False, **options)
        message = parsed.choices[0].message
        assert message.tool_calls is not None
        assert isinstance(message.tool_calls[0].function.parsed_arguments, find_town)
        with client.chat.completions.stream(messages=turns, parallel_tool_calls=False, **options) as stream:
            final = stream.get_final_completion().choices[0].message
        assert final.tool_calls is not None
        assert final.tool_calls[0].function.arguments == message.tool_calls[0].function.arguments
        turns += [
            message,
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Done."},
        ]
        options["tool_choice"] = "auto"
        answer = client.chat.completions.create(messages=turns, max_tokens=8, **options)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
