"""What broke other servers: the cases about sampling, on the demo model; and pieces that join to the whole.

A case whose answer needs a model that knows more than the demo is tested by its mechanism.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.engine import Engine
from tests.cases.loading import case, file_url
from tests.openai_api.harness import CHAT, client_of, error_of, events_of, make_app

NAME = "kaminari-demo"
LEGACY = "/v1/completions"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(
        Settings(
            model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=4, context=1024)
        )
    ) as loaded:
        yield loaded


def request_of(case_id: str, **fields: Any) -> dict[str, Any]:
    return {**case(case_id).request(NAME), **fields}


async def send(engine: Engine, body: dict[str, Any], path: str = CHAT) -> httpx.Response:
    async with client_of(make_app(engine)[0]) as client:
        return await client.post(path, json=body, timeout=60)


def strict(text: str) -> Any:
    """Parse as a reader does that knows no NaN and no infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


async def whole(engine: Engine, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    response = await send(engine, body, path)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = strict(response.text)
    return answer


async def contents(engine: Engine, body: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in (await whole(engine, body))["choices"]]


@pytest.mark.parametrize("top", [987654321, *case("smp-top-logprobs").input["also"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_smp_top_logprobs(engine: Engine, top: Any, stream: bool) -> None:
    response = await send(engine, request_of("smp-top-logprobs", top_logprobs=top, stream=stream))
    assert response.status_code == 400
    assert error_of(response)["param"] == "top_logprobs"
    legacy = {"prompt": "hi", "logprobs": top, "stream": stream}
    response = await send(engine, legacy, LEGACY)
    assert response.status_code == 400
    assert error_of(response)["param"] == "logprobs"


@pytest.mark.parametrize("top", [0, 1, 20])
async def test_smp_top_logprobs_within_bounds(engine: Engine, top: int) -> None:
    answer = await whole(engine, request_of("smp-top-logprobs", top_logprobs=top))
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == top


async def test_smp_seed_default(engine: Engine) -> None:
    body = request_of("smp-seed-default", ignore_eos=True, temperature=2.0)
    assert len({(await contents(engine, body))[0] for _ in range(5)}) > 1
    assert len(set(await contents(engine, {**body, "n": 3}))) > 1
    seeded = await contents(engine, {**body, "n": 3, "seed": 11})
    assert len(set(seeded)) > 1
    assert await contents(engine, {**body, "n": 3, "seed": 11}) == seeded
    assert await contents(engine, {**body, "n": 3, "seed": 12}) != seeded


async def test_smp_rep_penalty_images(engine: Engine) -> None:
    body = request_of("smp-rep-penalty-images", return_token_ids=True, logprobs=True)
    plain = await whole(engine, {**body, "repetition_penalty": 1.0})
    answer = await whole(engine, {**body, "repetition_penalty": 100.0})
    made = answer["choices"][0]["token_ids"]
    assert made != plain["choices"][0]["token_ids"]
    # The placeholder fills the prompt: were it counted, it could not be made easily.
    (placeholder,) = {
        token
        for token in answer["prompt_token_ids"]
        if answer["prompt_token_ids"].count(token) >= answer["usage"]["prompt_tokens_details"]["image_tokens"]
    }
    lifted = {**body, "logit_bias": {str(placeholder): 100}, "max_tokens": 1}
    for penalty in (1.0, 100.0):
        lifted_answer = await whole(engine, {**lifted, "repetition_penalty": penalty})
        assert lifted_answer["choices"][0]["token_ids"] == [placeholder]


async def test_smp_penalty_scope(engine: Engine) -> None:
    body = request_of("smp-penalty-scope", return_token_ids=True, max_tokens=1, ignore_eos=True)
    plain = {**body, "presence_penalty": 0, "frequency_penalty": 0}
    first = (await whole(engine, plain))["choices"][0]["token_ids"]
    # The first token has nothing made before it, whatever the prompt holds.
    assert (await whole(engine, body))["choices"][0]["token_ids"] == first
    long = {**body, "max_tokens": 40}
    made = (await whole(engine, long))["choices"][0]["token_ids"]
    assert len(set(made)) > len(
        set((await whole(engine, {**plain, "max_tokens": 40}))["choices"][0]["token_ids"])
    )
    # The repetition penalty sees the prompt: its tokens are unlikely from the first one on.
    prompt = (await whole(engine, body))["prompt_token_ids"]
    held = await whole(engine, {**plain, "repetition_penalty": 100.0})
    token = held["choices"][0]["token_ids"][0]
    assert token == first[0] if first[0] not in prompt else token not in prompt


FIELDS: list[dict[str, Any]] = [
    {"frequency_penalty": 2.0},
    {"presence_penalty": 2.0},
    {"repetition_penalty": 3.0},
    {"logit_bias": {"65": 100}},
    {"stop": ["e", "a", "i", "o", "0", "1", "2"]},
    {"min_p": 0.9},
    {"top_k": 2},
    {"top_p": 0.05},
    {"seed": 2},
    {"temperature": 0.0},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("wished", FIELDS, ids=lambda fields: next(iter(fields)))
@pytest.mark.parametrize("picture", [False, True])
async def test_smp_penalty_dropped_vlm(engine: Engine, wished: dict[str, Any], picture: bool) -> None:
    body = request_of("smp-penalty-dropped-vlm", frequency_penalty=0.0, temperature=2.0, seed=1)
    body |= {"ignore_eos": True, "return_token_ids": True}
    if not picture:
        del body["messages"][0]["content"][0]
    ids = [(await whole(engine, fields))["choices"][0]["token_ids"] for fields in (body, {**body, **wished})]
    assert ids[0] != ids[1]


async def test_smp_logprob_inf(engine: Engine) -> None:
    for fields in ({}, {"stream": True}):
        response = await send(engine, request_of("smp-logprob-inf", **fields))
        assert response.status_code == 200
        for line in response.text.splitlines() if fields else [response.text]:
            if line.startswith("data: {") or not fields:
                strict(line.removeprefix("data: "))
    answer = await whole(engine, request_of("smp-logprob-inf"))
    entries = answer["choices"][0]["logprobs"]["content"]
    assert entries
    for entry in entries:
        assert len(entry["top_logprobs"]) == 5
        assert all(-9999.0 <= one["logprob"] <= 0 for one in [entry, *entry["top_logprobs"]])
    joined = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert joined == answer["choices"][0]["message"]["content"]
    assert json.loads(joined) in ("yes", "no")


async def test_smp_logprob_bytes(engine: Engine) -> None:
    """A character of several tokens, which the demo writes where a bias leads it byte by byte."""
    ids = engine.prepare_text("👩").token_ids
    assert len(ids) > 1
    body = request_of("smp-logprob-bytes", structured_outputs={"choice": ["👩‍👩‍👧"]}, max_tokens=40)
    answer = await whole(engine, body)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert answer["choices"][0]["message"]["content"] == "👩‍👩‍👧"
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "👩‍👩‍👧"
    assert any("\ufffd" in entry["token"] for entry in entries)


async def test_a_logit_bias_forbids_and_forces(engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": "What is 3+4?"}], "temperature": 0}
    plain = await whole(engine, {**body, "return_token_ids": True})
    first = plain["choices"][0]["token_ids"][0]
    other = await whole(engine, {**body, "return_token_ids": True, "logit_bias": {str(first): -100}})
    assert other["choices"][0]["token_ids"][0] != first
    size = engine.info.vocab_size
    response = await send(engine, {**body, "logit_bias": {str(size): 1}})
    assert response.status_code == 400
    assert error_of(response)["param"] == "logit_bias"
    response = await send(engine, {**body, "stop_token_ids": [size]})
    assert error_of(response)["param"] == "stop_token_ids"


async def test_stop_tokens_and_least_lengths(engine: Engine) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "return_token_ids": True,
    }
    plain = (await whole(engine, body))["choices"][0]
    second = plain["token_ids"][1]
    stopped = (await whole(engine, {**body, "stop_token_ids": [second]}))["choices"][0]
    assert stopped["token_ids"] == plain["token_ids"][:2]
    assert stopped["finish_reason"] == "stop"
    assert len(stopped["message"]["content"]) < len(plain["message"]["content"])
    longer = (await whole(engine, {**body, "min_tokens": 30, "max_tokens": 40}))["choices"][0]
    assert len(longer["token_ids"]) > 30
    assert longer["token_ids"][: len(plain["token_ids"]) - 1] == plain["token_ids"][:-1]


PROMPTS = st.one_of(
    st.sampled_from(["What is 3+4?", "What is the capital of France?", "Say: abcde", "字 é 👩‍👩‍👧"]),
    st.text(st.characters(codec="utf-8"), max_size=15),
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Requests of every kind that is drawn the same twice."""
    body: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 24)),
        "seed": draw(st.integers(0, 99)),
        "temperature": draw(st.sampled_from([0, 0.7, 2.0])),
        "n": draw(st.integers(1, 2)),
        "ignore_eos": draw(st.booleans()),
        "return_token_ids": draw(st.booleans()),
    }
    optional = {
        "stop": st.lists(st.text("abcde 0123456789", min_size=1, max_size=2), min_size=1, max_size=4),
        "min_tokens": st.integers(0, body["max_tokens"]),
        "stop_token_ids": st.lists(st.integers(0, 200), max_size=20),
        "frequency_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "logit_bias": st.dictionaries(st.integers(0, 200).map(str), st.integers(-5, 5), max_size=5),
        "top_k": st.integers(1, 30),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True)):
        body[name] = draw(optional[name])
    return body


def joined(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """One choice of a stream, put together."""
    pieces = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    texts = [piece["text"] if "text" in piece else piece["delta"].get("content", "") for piece in pieces]
    entries: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, items in (piece["logprobs"] or {}).items():
            if items is not None:
                entries.setdefault(name, []).extend(items)
    return {
        "text": "".join(texts),
        "logprobs": entries,
        "token_ids": [token for piece in pieces for token in piece.get("token_ids", [])],
        "finish_reason": pieces[-1]["finish_reason"],
    }


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(), prompt=PROMPTS, top=st.sampled_from([None, 0, 2, 20]), picture=st.booleans())
async def test_a_chat_stream_joins_to_the_whole(
    engine: Engine, body: dict[str, Any], prompt: str, top: int | None, picture: bool
) -> None:
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    if picture:
        content.insert(0, {"type": "image_url", "image_url": {"url": file_url("digit_1.png")}})
    body = {**body, "messages": [{"role": "user", "content": content}]}
    if top is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    answer = await whole(engine, body)
    response = await send(engine, {**body, "stream": True, "stream_options": {"include_usage": True}})
    *chunks, last = events_of(response.text)
    assert last["usage"] == answer["usage"]
    for choice in answer["choices"]:
        stream = joined(chunks, choice["index"])
        assert stream["text"] == choice["message"]["content"]
        assert stream["finish_reason"] == choice["finish_reason"]
        assert stream["token_ids"] == choice.get("token_ids", [])
        entries = (choice["logprobs"] or {"content": []})["content"]
        # A matrix product of one row and of two may round differently: names are the same, numbers nearly.
        assert [entry["token"] for entry in stream["logprobs"].get("content", [])] == [
            entry["token"] for entry in entries
        ]
        for ours, theirs in zip(stream["logprobs"].get("content", []), entries, strict=True):
            assert ours["bytes"] == theirs["bytes"]
            assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=1e-4)
            assert len(ours["top_logprobs"]) == top
        if top is not None:
            raw = b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")
            assert raw.startswith(choice["message"]["content"]) or "\ufffd" in choice["message"]["content"]
            if "stop" not in body:
                assert raw == choice["message"]["content"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=bodies(),
    prompts=st.lists(PROMPTS.filter(bool), min_size=1, max_size=3),
    top=st.sampled_from([None, 0, 3]),
)
async def test_a_completion_stream_joins_to_the_whole(
    engine: Engine, body: dict[str, Any], prompts: list[str], top: int | None
) -> None:
    body = {**body, "prompt": prompts, "logprobs": top, "echo": top is None}
    answer = await whole(engine, body, LEGACY)
    response = await send(engine, {**body, "stream": True}, LEGACY)
    chunks = events_of(response.text)
    assert len(answer["choices"]) == len(prompts) * body["n"]
    for choice in answer["choices"]:
        stream = joined(chunks, choice["index"])
        assert stream["text"] == choice["text"]
        assert stream["finish_reason"] == choice["finish_reason"]
        assert stream["token_ids"] == choice.get("token_ids", [])
        lists = choice["logprobs"] or {}
        for name in ("tokens", "text_offset"):
            assert stream["logprobs"].get(name, []) == lists.get(name, [])
        if top is None:
            assert choice["text"].startswith(prompts[choice["index"] // body["n"]])
