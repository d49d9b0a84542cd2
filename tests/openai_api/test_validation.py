"""What a request may hold: every refusal is a 400 that names the field, before anything is queued."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kaminari.openai_api.errors import ApiError
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.parsing import parse
from tests.openai_api.fake_engine import INFO, FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app, post

PNG = "data:image/png;base64,iVBORw0KGgo="


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def text(value: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def picture(value: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": value, **fields}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # body, param, a piece of the message
    ({"messages": None}, "messages", "required"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "array"),
    ({"messages": ["hi"]}, "messages[0]", "object"),
    ({"messages": [None]}, "messages[0]", "object"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "assistant"),
    ({"messages": [{"role": "function", "name": "f", "content": "hi"}]}, "messages[0].role", "tool"),
    ({"messages": [*HI, {"role": "user"}]}, "messages[1].content", "required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string or an array"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "at least 1"),
    ({"messages": [{"role": "user", "content": "x", "contnt": 1}]}, "messages[0].contnt", "`content`"),
    (user("x"), "messages[0].content[0]", "object"),
    (user({"text": "x"}), "messages[0].content[0].type", "required"),
    (user({"type": 3}), "messages[0].content[0].type", "string"),
    (user(text(5)), "messages[0].content[0].text", "string"),
    (user(text(), text(None)), "messages[0].content[1].text", "required"),
    (user(text(txt=1)), "messages[0].content[0].txt", "`text`"),
    (user(text(), picture({"url": 5})), "messages[0].content[1].image_url.url", "string"),
    (user(text(), picture({})), "messages[0].content[1].image_url.url", "required"),
    (user(picture(None)), "messages[0].content[0].image_url", "required"),
    (user(picture(["x"])), "messages[0].content[0].image_url", "object"),
    (user(picture({"url": PNG, "detail": "max"})), "messages[0].content[0].image_url.detail", "'low'"),
    (user(picture({"url": PNG, "size": 1})), "messages[0].content[0].image_url.size", "not a known"),
    (user({"type": "image", "image": PNG}), "messages[0].content[0].type", '"type": "image_url"'),
    (user({"type": "input_image", "image_url": PNG}), "messages[0].content[0].type", '"type": "image_url"'),
    (user({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].type", "`input_audio`"),
    (user({"type": "video_url", "video_url": {}}), "messages[0].content[0].type", "`video_url`"),
    (user({"type": "file", "file": {}}), "messages[0].content[0].type", "`file`"),
    (user({"type": "refusal", "refusal": "no"}), "messages[0].content[0].type", "assistant"),
    (
        {"messages": [{"role": "assistant", "content": [picture({"url": PNG})]}]},
        "messages[0].content[0].type",
        "role assistant",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        "messages[0].tool_calls[0].function",
        "is required",
    ),
    (
        {"messages": [{"role": "assistant", "function_call": {"name": "a"}}]},
        "messages[0].function_call",
        "not supported yet",
    ),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio", "not supported yet"),
    ({"tempreature": 1}, "tempreature", "did you mean `temperature`?"),
    ({"max_output_tokens": 5}, "max_output_tokens", "did you mean `max_"),
    ({"zzzzqqqq": 1}, "zzzzqqqq", "not a known field"),
    ({"model": 5}, "model", "string"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -1}, "max_tokens", "at least 1"),
    ({"max_tokens": "10"}, "max_tokens", "integer"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"temperature": -0.1}, "temperature", "between 0 and 2"),
    ({"temperature": 2.1}, "temperature", "between 0 and 2"),
    ({"temperature": "1"}, "temperature", "number"),
    ({"temperature": False}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.1}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "at least 1"),
    ({"top_k": 1.0}, "top_k", "integer"),
    ({"min_p": 1.5}, "min_p", "between 0 and 1"),
    ({"seed": 2**63}, "seed", "64-bit"),
    ({"seed": 2**70}, "seed", "integer"),
    ({"seed": "1"}, "seed", "integer"),
    ({"n": 0}, "n", f"between 1 and {INFO.choices}"),
    ({"n": 3_000_000}, "n", f"between 1 and {INFO.choices}"),
    ({"n": True}, "n", "integer"),
    ({"stop": ""}, "stop", "1 to"),
    ({"stop": ["a", ""]}, "stop", "1 to"),
    ({"stop": ["a"] * 17}, "stop", "at most 16"),
    ({"stop": [1]}, "stop", "array of strings"),
    ({"stop": {"a": 1}}, "stop", "array of strings"),
    ({"ignore_eos": 1}, "ignore_eos", "true or false"),
    ({"presence_penalty": 2.1}, "presence_penalty", "between -2 and 2"),
    ({"presence_penalty": "1"}, "presence_penalty", "number"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "between -2 and 2"),
    ({"frequency_penalty": True}, "frequency_penalty", "number"),
    ({"repetition_penalty": 0}, "repetition_penalty", "between 0.01 and 100"),
    ({"repetition_penalty": -1}, "repetition_penalty", "between 0.01 and 100"),
    ({"repetition_penalty": True}, "repetition_penalty", "number"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
    ({"logit_bias": {"1000": 1}}, "logit_bias", "ids from 0 to 999"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"05": 1}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"²": 1}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"5": True}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {"5": None}}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": [5]}, "logit_bias", "token ids and numbers"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024 tokens"),
    ({"stop_token_ids": [1000]}, "stop_token_ids", "ids from 0 to 999"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "ids from 0 to 999"),
    ({"stop_token_ids": ["5"]}, "stop_token_ids[0]", "integer"),
    ({"stop_token_ids": 5}, "stop_token_ids", "array"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids", "at most 128"),
    ({"min_tokens": -1}, "min_tokens", "at least 0"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "at most max_tokens"),
    ({"min_tokens": 1.5}, "min_tokens", "integer"),
    ({"logprobs": 1}, "logprobs", "true or false"),
    ({"logprobs": 5}, "logprobs", "true or false"),
    ({"top_logprobs": 3}, "top_logprobs", "`logprobs` is true"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs", "`logprobs` is true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "at least 0"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs", "integer"),
    ({"logprobs": True, "top_logprobs": "5"}, "top_logprobs", "integer"),
    ({"stream": "true"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "`stream`"),
    (
        {"stream": True, "stream_options": {"includeUsage": True}},
        "stream_options.includeUsage",
        "`include_usage`",
    ),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or"),
    ({"return_token_ids": 1}, "return_token_ids", "true or false"),
    ({"timings": "yes"}, "timings", "true or false"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "object"),
    (
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "chat_template_kwargs.add_generation_prompt",
        "field of its own",
    ),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "add_generation_prompt",
    ),
]

NOT_YET: list[tuple[str, Any, list[Any]]] = [
    # field, a value that would change the answer, values that change nothing
    ("functions", [{"name": "f"}], [[]]),
    ("function_call", {"name": "f"}, ["none", "auto"]),
    ("modalities", ["text", "audio"], [["text"]]),
    ("audio", {"voice": "a"}, []),
    ("prediction", {"type": "content"}, []),
    ("moderation", {"model": "m"}, []),
    ("web_search_options", {}, []),
]

NO_EFFECT: dict[str, Any] = {
    "user": "me",
    "store": True,
    "metadata": {"a": None},
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "verbosity": "high",
}


@pytest.mark.parametrize(("fields", "param", "piece"), REFUSED, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_a_400_that_names_it(
    fields: dict[str, Any], param: str, piece: str, stream: bool
) -> None:
    engine = FakeEngine()
    body = {"stream": True, **fields} if stream and "stream_options" not in fields else fields
    response = await post(engine, **body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert piece in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert engine.params == []


@pytest.mark.parametrize(("field", "value", "harmless"), NOT_YET)
async def test_what_is_not_supported_yet_passes_only_where_it_changes_nothing(
    field: str, value: Any, harmless: list[Any]
) -> None:
    response = await post(FakeEngine(), **{field: value})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == field
    assert error["code"] == "unsupported_parameter"
    assert "not supported yet by this version of kaminari" in error["message"]
    for same in harmless:
        assert (await post(FakeEngine(), **{field: same})).status_code == 200


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("maxTokens", "max_tokens"),
        ("top_n", "top_p"),
        ("stops", "stop"),
        ("tool", "tools"),
        ("seeds", "seed"),
    ],
)
async def test_an_unknown_field_names_the_known_one_that_was_meant(field: str, meant: str) -> None:
    message = error_of(await post(FakeEngine(), **{field: 1}))["message"]
    assert message == f"`{field}` is not a known field; did you mean `{meant}`?"


@pytest.mark.parametrize("field", ["foo", "input", "best_of", "thinking", "images", "mirostat", "format"])
async def test_an_unknown_field_that_is_like_none_gets_no_guess(field: str) -> None:
    message = error_of(await post(FakeEngine(), **{field: 1}))["message"]
    assert message == f"`{field}` is not a known field"


async def test_fields_without_effect_are_accepted() -> None:
    engine = FakeEngine()
    assert (await post(engine, **NO_EFFECT)).status_code == 200
    assert (await post(engine)).status_code == 200
    assert engine.params[0] == engine.params[1]
    assert engine.conversations[0] == engine.conversations[1]


def nulls(schema: type[ChatRequest]) -> dict[str, None]:
    return {name: None for name in schema.model_fields if name != "messages"}


async def test_null_is_the_same_as_absent_at_every_level() -> None:
    engine = FakeEngine()
    message = {"role": "user", "content": [text("hi"), picture({"url": PNG})], "name": None}
    assert (await post(engine, messages=[message])).status_code == 200
    message["content"][0]["prompt_cache_breakpoint"] = None
    message["content"][1]["image_url"]["detail"] = None
    options = {"include_usage": None, "continuous_usage_stats": None}
    nothing = {**nulls(ChatRequest), "stream": True, "stream_options": options, "messages": [message]}
    assert (await post(engine, **nothing)).status_code == 200
    assert engine.params[0] == engine.params[1]
    assert engine.conversations[0] == engine.conversations[1]


async def test_null_inside_template_arguments_is_kept() -> None:
    engine = FakeEngine()
    await post(engine, chat_template_kwargs={"tone": None, "deep": {"a": None}})
    assert engine.conversations[0].template_kwargs == {"tone": None, "deep": {"a": None}}


async def test_an_answer_can_be_sent_back_as_history() -> None:
    engine = FakeEngine()
    message = (await post(engine)).json()["choices"][0]["message"]
    echoed = {
        **message,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning_content": "thought",
    }
    response = await post(engine, messages=[*HI, echoed, *HI])
    assert response.status_code == 200
    assert engine.conversations[1].messages[1].parts[0].text == " Hello, world\n"


@pytest.mark.parametrize("name", ["gpt-4o", "", "ORG/FAKE-VL"])
async def test_another_model_is_a_404_that_lists_the_names(name: str) -> None:
    response = await post(FakeEngine(), model=name)
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert INFO.model in error["message"]
    assert not name or name not in error["message"].replace(INFO.model, "")


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": INFO.model}])
async def test_the_served_model_may_stay_unnamed(fields: dict[str, Any]) -> None:
    response = await post(FakeEngine(), **fields)
    assert response.json()["model"] == INFO.model


SECRET = "SECRETPAYLOAD"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"SECRETPAYLOAD"',
        b"null",
        b'{"messages": SECRETPAYLOAD}',
        b'{"messages": [{"role": "user", "content": "SECRETPAYLOAD\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "SECRETPAYLOAD\xff"}]}',
        b'{"temperature": NaN, "messages": []}',
        b'{"temperature": 1e999, "messages": []}',
        b"[" * 100_000,
        b'{"messages":' + b'[{"a":' * 2000,
        b'{"n": ' + b"9" * 10_000 + b"}",
        json.dumps(user(picture("data:image/png;base64," + SECRET + "!"))).encode(),
        json.dumps(user({"type": SECRET + "\n"})).encode(),
        json.dumps({"messages": [{"role": SECRET, "content": ""}]}).encode(),
        json.dumps({"messages": HI, "stop": {"a": SECRET}}).encode(),
    ],
    ids=lambda body: body[:40],
)
async def test_a_bad_body_is_a_400_that_repeats_nothing(body: bytes) -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        response = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert SECRET not in error_of(response)["message"]


async def test_the_long_name_of_an_unknown_field_is_cut() -> None:
    response = await post(FakeEngine(), **{"x" * 100_000: 1})
    assert response.status_code == 400
    assert len(response.content) < 400


def test_floods_are_refused_with_one_short_message() -> None:
    many = 100_000
    for body in (
        {"messages": HI * many},
        user(*[text()] * many),
        user(*[5] * 4000),
        {"messages": HI, **{f"field{i}": 1 for i in range(many)}},
        {"messages": HI, "tools": [{}] * many},
    ):
        with pytest.raises(ApiError) as refusal:
            parse(ChatRequest, json.dumps(body).encode())
        assert len(refusal.value.message) < 300
