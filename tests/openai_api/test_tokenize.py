"""`/tokenize`, `/detokenize` and completions on the demo: ids, counts and text agree with one another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaminari.config import EngineSettings, Folder, ModelSettings, Settings
from kaminari.engine.engine import Engine
from tests.cases.loading import file_url
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app

PICTURE = {"type": "image_url", "image_url": {"url": file_url("digit_1.png")}}
LOOK = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "Read the digit."}]}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(
        Settings(model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=2, context=512))
    ) as loaded:
        yield loaded


async def send(engine: Any, path: str, **body: Any) -> httpx.Response:
    async with client_of(make_app(engine)[0]) as client:
        return await client.post(path, json=body)


async def answer(engine: Any, path: str, **body: Any) -> Any:
    response = await send(engine, path, **body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("messages", [HI, LOOK], ids=["text", "picture"])
@pytest.mark.parametrize("generation", [None, True, False])
async def test_messages_have_the_ids_that_a_chat_would_have(
    engine: Engine, messages: Any, generation: bool | None
) -> None:
    fields = {"messages": messages, "add_generation_prompt": generation}
    tokens = await answer(engine, "/tokenize", **fields)
    chat = await answer(engine, CHAT, **fields, max_tokens=1, return_token_ids=True)
    assert tokens["tokens"] == chat["prompt_token_ids"]
    assert tokens["count"] == len(tokens["tokens"]) == chat["usage"]["prompt_tokens"]
    assert tokens["max_model_len"] == 512
    assert tokens["token_strs"] is None
    images = chat["usage"]["prompt_tokens_details"]["image_tokens"]
    assert (images > 0) == (messages is LOOK)
    assert tokens["count"] > images


async def test_tools_and_template_arguments_count_as_in_a_chat(checkpoint: Callable[[str], Path]) -> None:
    function = {"name": "find_town", "description": "x" * 40, "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    chosen = Settings(
        model=ModelSettings(source=Folder(checkpoint("qwen3_5")), dtype="float32"),
        engine=EngineSettings(threads=1, slots=1, context=2000),
    )
    counts = []
    with Engine.load(chosen) as engine:
        for fields in (
            {},
            {"tools": tools},
            {"tools": tools, "tool_choice": "none"},
            {"tools": tools, "chat_template_kwargs": {"enable_thinking": True}},
            {"tools": tools, "tool_choice": "required", "add_generation_prompt": False},
        ):
            tokens = await answer(engine, "/tokenize", messages=HI, **fields)
            chat = await answer(engine, CHAT, messages=HI, **fields, max_tokens=1, return_token_ids=True)
            assert tokens["tokens"] == chat["prompt_token_ids"]
            counts.append(tokens["count"])
    assert counts[0] == counts[2] < counts[4] < counts[3] < counts[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_wrong_tools_are_a_400(engine: Engine, fields: dict[str, Any], param: str) -> None:
    refused = await send(engine, "/tokenize", messages=HI, **fields)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == param


async def test_token_strings_are_the_vocabulary_s(engine: Engine) -> None:
    tokens = await answer(engine, "/tokenize", prompt="What is it?", return_token_strs=True)
    tokenizer = engine.frontend.tokenizer
    assert tokens["token_strs"] == [tokenizer.id_to_token(token) for token in tokens["tokens"]]


async def test_the_spelling_of_a_control_token_is_text(engine: Engine) -> None:
    text = "<|im_start|>user"
    tokens = (await answer(engine, "/tokenize", prompt=text))["tokens"]
    assert not set(tokens) & engine.frontend.special_ids
    assert (await answer(engine, "/detokenize", tokens=tokens))["prompt"] == text
    control = engine.frontend.tokenizer.token_to_id("<|im_start|>")
    assert (await answer(engine, "/detokenize", tokens=[control]))["prompt"] == "<|im_start|>"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_a_text_comes_back_from_its_ids(engine: Engine, text: str) -> None:
    prompt = engine.prepare_text(text)
    assert engine.decode(prompt.token_ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("path", "body", "param", "piece"),
    [
        ("/tokenize", {}, "prompt", "or `messages` is required"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt", "not both"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "string"),
        ("/tokenize", {"prompt": ""}, "prompt", "at least one token"),
        ("/tokenize", {"prompt": "word " * 5000}, "prompt", "512"),
        ("/tokenize", {"messages": []}, "messages", "at least 1"),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 5000}]}, "messages", "512"),
        ("/tokenize", {"prompt": "a", "tokens": [1]}, "tokens", "not a known"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs", "true or false"),
        ("/detokenize", {}, "tokens", "required"),
        ("/detokenize", {"tokens": "a"}, "tokens", "token ids"),
        ("/detokenize", {"tokens": [1.5]}, "tokens", "token ids"),
        ("/detokenize", {"tokens": [True]}, "tokens", "token ids"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "from 0 to"),
        ("/detokenize", {"tokens": [2**40]}, "tokens", "from 0 to"),
        ("/v1/completions", {"prompt": [2**40]}, "prompt", "from 0 to"),
        ("/v1/completions", {"prompt": [[1], [-1]]}, "prompt[1]", "from 0 to"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt[1]", "at least one token"),
        ("/v1/completions", {"prompt": [[1], []]}, "prompt[1]", "at least one token"),
        ("/v1/completions", {"prompt": "word " * 5000}, "prompt", "512"),
        ("/v1/completions", {"prompt": [5] * 600}, "prompt", "600"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_body_is_a_400_that_names_its_field(
    engine: Engine, path: str, body: dict[str, Any], param: str, piece: str
) -> None:
    response = await send(engine, path, **body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert piece in error["message"]


async def test_a_picture_s_token_needs_messages(engine: Engine) -> None:
    marker = engine.frontend.tokenizer.token_to_id("<|image_pad|>")
    response = await send(engine, "/v1/completions", prompt=[5, marker])
    assert response.status_code == 400
    assert "pictures need messages" in error_of(response)["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_and_no_engine(path: str) -> None:
    assert (await send(FakeEngine(), path, prompt="a", model="gpt-4o", tokens=[1])).status_code == 400
    fields: dict[str, Any] = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    assert (await send(FakeEngine(), path, **fields, model="gpt-4o")).status_code == 404
    assert (await send(None, path, **fields)).status_code == 503


async def test_ids_of_a_chat_go_on_as_the_chat_does(engine: Engine) -> None:
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    chat = await answer(engine, CHAT, messages=ask, temperature=0)
    ids = (await answer(engine, "/tokenize", messages=ask))["tokens"]
    said = chat["choices"][0]["message"]["content"]
    assert said
    for prompt in (ids, [ids, ids]):
        text = await answer(engine, "/v1/completions", prompt=prompt, temperature=0)
        assert {choice["text"] for choice in text["choices"]} == {said}
