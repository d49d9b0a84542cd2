"""`/v1/completions`: forms of a prompt, several prompts as one request, and its own shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from kaminari.config import EngineSettings, Settings
from kaminari.engine.errors import QueueFull
from kaminari.engine.events import ChoiceFinished, Delta, Failed, FinishReason, LikelyToken, TokenLogprobs
from tests.openai_api.fake_engine import INFO, FakeEngine, endless, finished, says
from tests.openai_api.harness import AsgiCall, client_of, error_of, events_of, make_app, serving, until

PATH = "/v1/completions"
TEXT = " Hello, world\n"


async def send(engine: Any, /, **fields: Any) -> httpx.Response:
    async with client_of(make_app(engine)[0]) as client:
        return await client.post(PATH, json={"prompt": "hi", **fields})


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        ("hi", ["hi"]),
        (["hi"], ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_every_form_of_a_prompt(prompt: Any, seen: list[Any]) -> None:
    engine = FakeEngine()
    response = await send(engine, prompt=prompt, n=2)
    assert response.status_code == 200
    body = response.json()
    assert engine.texts == seen
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == INFO.model
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (index, TEXT, "stop") for index in range(2 * len(seen))
    ]
    assert body["usage"]["prompt_tokens"] == 5 * len(seen)
    assert body["usage"]["completion_tokens"] == 14 * len(seen)


async def test_the_engine_knows_which_answers_are_watched() -> None:
    engine = FakeEngine()
    await send(engine, prompt=["a", "b"])
    await send(engine, stream=True)
    assert engine.watched == [False, False, True]


async def test_the_engine_expects_a_stream_while_its_prompts_are_prepared() -> None:
    engine = FakeEngine()
    await send(engine, stream=False)
    assert engine.expected == []
    await send(engine, stream=True)
    assert engine.expected == [True, False]


async def test_the_default_is_sixteen_tokens() -> None:
    engine = FakeEngine()
    await send(engine)
    await send(engine, max_tokens=3)
    await send(engine, max_tokens=None)
    assert [params.max_tokens for params in engine.params] == [16, 3, 16]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": []}, "prompt", "non-empty"),
    ({"prompt": 5}, "prompt", "string"),
    ({"prompt": ["a", 1]}, "prompt", "string"),
    ({"prompt": [True]}, "prompt", "string"),
    ({"prompt": [1.5]}, "prompt", "string"),
    ({"prompt": [[1], "a"]}, "prompt", "string"),
    ({"prompt": {"a": 1}}, "prompt", "string"),
    ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
    ({"messages": []}, "messages", "not a known"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"best_of": 2}, "best_of", "not supported"),
    ({"echo": 1}, "echo", "true or false"),
    ({"echo": True, "logprobs": 1}, "logprobs", "`echo`"),
    ({"logprobs": 21}, "logprobs", "at most 20"),
    ({"logprobs": -1}, "logprobs", "at least 0"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"n": 5}, "n", "between 1 and 4"),
    ({"temperature": 3}, "temperature", "between 0 and 2"),
    ({"min_tokens": 17}, "min_tokens", "max_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "`stream`"),
]


@pytest.mark.parametrize(("fields", "param", "piece"), REFUSED, ids=lambda value: str(value)[:60])
async def test_a_bad_field_is_a_400_that_names_it(fields: dict[str, Any], param: str, piece: str) -> None:
    engine = FakeEngine()
    app, _ = make_app(engine, Settings(engine=EngineSettings(queue_size=64)))
    async with client_of(app) as client:
        response = await client.post(PATH, json={"prompt": "hi", **fields})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert piece in error["message"]
    assert engine.params == []


async def test_echo_begins_with_the_prompt() -> None:
    whole = (await send(FakeEngine(), prompt=["one", "two"], echo=True)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["one" + TEXT, "two" + TEXT]
    ids = (await send(FakeEngine(), prompt=[7, 8], echo=True)).json()
    assert ids["choices"][0]["text"] == "<7><8>" + TEXT


@pytest.mark.parametrize("echo", [False, True])
async def test_a_stream_joins_to_the_whole(echo: bool) -> None:
    fields = {"prompt": ["one", "two"], "n": 2, "echo": echo, "return_token_ids": True}
    whole = (await send(FakeEngine(), **fields)).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await send(FakeEngine(), **fields, stream=True, stream_options=options, timings=True)
    *chunks, last = events_of(response.text)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    for choice in whole["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [i for piece in pieces for i in piece.get("token_ids", [])] == choice["token_ids"]
        assert pieces[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    running = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert running == sorted(running)
    assert running[-1] == whole["usage"]["completion_tokens"]
    assert chunks[-1]["timings"]["tokens_per_second"] == (28 - 4) / 2.0


async def test_a_prompt_of_several_that_finds_the_queue_full_takes_the_others_back() -> None:
    engine = FakeEngine(endless, pause=0.01)
    calls = iter(range(10))

    def refuse_the_third() -> None:
        if next(calls) == 2:
            raise QueueFull

    engine.submit_hook = refuse_the_third
    response = await send(engine, prompt=["a", "b", "c"])
    assert response.status_code == 503
    assert error_of(response)["code"] == "queue_full"
    assert engine.wait_until_idle()
    assert engine.aborted == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_in_one_prompt_ends_all(stream: bool) -> None:
    scripts = iter([endless, says([Delta(0, "a", (1,))], [Failed("the engine failed")])])
    engine = FakeEngine(pause=0.01)
    engine.script = lambda params: next(scripts)(params)
    response = await send(engine, prompt=["a", "b"], stream=stream)
    if stream:
        assert "the engine failed" in events_of(response.text)[-1]["error"]["message"]
    else:
        assert response.status_code == 500
    assert engine.wait_until_idle()


async def test_a_client_that_leaves_frees_every_prompt_s_slot() -> None:
    engine = FakeEngine(endless, pause=0.005)
    call = AsgiCall(make_app(engine)[0], b'{"prompt": ["a", "b", "c"], "stream": true}', PATH)
    running = asyncio.create_task(call.run())
    await until(lambda: len(call.sent) > 5)
    call.gone.set()
    await running
    assert engine.wait_until_idle()
    assert engine.aborted == 3


def likely(text: bytes, logprob: float, *, spelling: str | None = None) -> LikelyToken:
    return LikelyToken(1, text, spelling, logprob)


def scripted_logprobs() -> FakeEngine:
    """`é!` in three tokens, two of them halves of a character, and an end token."""
    halves = [b"\xc3", b"\xa9", b"!"]
    named = [TokenLogprobs(likely(half, -0.5), (likely(b"x", -0.1), likely(half, -0.5))) for half in halves]
    end = TokenLogprobs(
        likely(b"", float("-inf"), spelling="<|im_end|>"), (likely(b"x", -0.1), likely(b"y", -0.2))
    )
    deltas = [
        Delta(0, text, (1,), (one,)) for text, one in zip(["", "é", "!", ""], [*named, end], strict=True)
    ]
    return FakeEngine(
        says(*[[delta] for delta in deltas], [ChoiceFinished(0, FinishReason.STOP), finished(4)])
    )


LEGACY = {
    "text_offset": [0, 0, 1, 2],
    "token_logprobs": [-0.5, -0.5, -0.5, -9999.0],
    "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!", "<|im_end|>"],
    "top_logprobs": [
        {"x": -0.1, "bytes:\\xc3": -0.5},
        {"x": -0.1, "bytes:\\xa9": -0.5},
        {"x": -0.1, "!": -0.5},
        {"x": -0.1, "y": -0.2, "<|im_end|>": -9999.0},
    ],
}


async def test_logprobs_in_four_lists_whole_and_streamed() -> None:
    (choice,) = (await send(scripted_logprobs(), logprobs=2)).json()["choices"]
    assert choice["logprobs"] == LEGACY
    chunks = events_of((await send(scripted_logprobs(), logprobs=2, stream=True)).text)
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    joined = {name: [item for piece in pieces for item in piece[name]] for name in LEGACY}
    assert joined == LEGACY
    (plain,) = (await send(scripted_logprobs())).json()["choices"]
    assert plain["logprobs"] is None


def test_the_openai_sdk() -> None:
    with (
        serving(FakeEngine()) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.completions.create(model=INFO.model, prompt=["a", "b"], echo=True)
        assert [choice.text for choice in answer.choices] == ["a" + TEXT, "b" + TEXT]
        chunks = client.completions.create(model=INFO.model, prompt="a", stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=INFO.model, prompt="a", suffix="b")
        assert refused.value.param == "suffix"
