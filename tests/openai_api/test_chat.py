"""Answers in one body and in chunks: their shapes, and that both say the same."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from kaminari.engine.errors import RequestError
from kaminari.engine.events import ChoiceFinished, Delta, Failed, FinishReason
from tests.openai_api.fake_engine import INFO, PROMPT_IDS, FakeEngine, endless, finished, says
from tests.openai_api.harness import error_of, events_of, post

TEXT = " Hello, world\n"
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 1, "image_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


async def chunks(engine: FakeEngine, /, **fields: Any) -> list[dict[str, Any]]:
    response = await post(engine, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def test_an_answer_has_exactly_the_shape_of_openai() -> None:
    response = await post(FakeEngine(), model=INFO.model)
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "chat.completion",
        "model": INFO.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    ChatCompletion.model_validate(response.json(), strict=True)


async def test_a_stream_is_role_deltas_reason_and_done() -> None:
    got = await chunks(FakeEngine())
    for chunk in got:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["object"] == "chat.completion.chunk"
        assert len(chunk["choices"]) == 1
        assert "usage" not in chunk
    assert len({(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in got}) == 1
    first, *middle, last = [chunk["choices"][0] for chunk in got]
    assert first["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["delta"] for choice in middle] == [
        {"content": text} for text in (" Hello", ",", " wor", "ld", "\n")
    ]
    assert last["delta"] == {}
    assert [choice["finish_reason"] for choice in (first, *middle)] == [None] * 6
    assert last["finish_reason"] == "stop"


async def test_a_stream_joins_to_the_whole_answer() -> None:
    whole = (await post(FakeEngine(), n=3, return_token_ids=True)).json()
    got = await chunks(FakeEngine(), n=3, return_token_ids=True)
    for index in range(3):
        own = [c for chunk in got for c in chunk["choices"] if c["index"] == index]
        joined = "".join(choice["delta"].get("content", "") for choice in own)
        assert joined == whole["choices"][index]["message"]["content"] == TEXT
        ids = [token for choice in own for token in choice.get("token_ids", [])]
        assert ids == whole["choices"][index]["token_ids"] == [100 * index + i for i in range(7)]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
        assert own[0]["delta"]["role"] == "assistant"
    assert whole["prompt_token_ids"] == got[0]["prompt_token_ids"] == list(PROMPT_IDS)
    assert all("prompt_token_ids" not in chunk for chunk in got[1:])


async def test_token_ids_are_absent_unless_asked_for() -> None:
    body = (await post(FakeEngine())).json()
    assert "prompt_token_ids" not in body
    assert "token_ids" not in body["choices"][0]
    assert all("token_ids" not in chunk["choices"][0] for chunk in await chunks(FakeEngine()))


async def test_usage_comes_last_and_only_if_asked_for() -> None:
    *others, last = await chunks(FakeEngine(), stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == USAGE
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in others)
    for chunk in (*others, last):
        ChatCompletionChunk.model_validate(chunk, strict=True)


async def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *others, last = await chunks(FakeEngine(), stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in others]
    assert counts == [0, 1, 2, 3, 5, 6, 7]
    assert {chunk["usage"]["prompt_tokens"] for chunk in others} == {5}
    assert last["usage"] == USAGE
    alone = await chunks(FakeEngine(), stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in alone)


async def test_timings_are_given_when_asked_for() -> None:
    expected = {
        "queue": 0.2,
        "preprocess": 0.1,
        "vision": 0.3,
        "prefill": 0.4,
        "first_token": 1.0,
        "decode": 2.0,
        "tokens_per_second": 3.0,
    }
    assert (await post(FakeEngine(), timings=True)).json()["timings"] == expected
    *others, last = await chunks(FakeEngine(), timings=True)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["timings"] == expected
    assert all("timings" not in chunk for chunk in others)
    assert "timings" not in (await post(FakeEngine())).json()


async def test_no_rate_is_claimed_for_a_single_token() -> None:
    script = says([Delta(0, "a", (1,)), ChoiceFinished(0, FinishReason.LENGTH), finished(1)])
    body = (await post(FakeEngine(script), timings=True)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["timings"]["tokens_per_second"] is None


async def test_text_held_back_and_then_dropped_by_a_stop_leaves_no_empty_delta() -> None:
    script = says(
        [Delta(0, "", (1,))],
        [Delta(0, "", (2,)), ChoiceFinished(0, FinishReason.STOP, "stop"), finished(2)],
    )
    got = await chunks(FakeEngine(script), return_token_ids=True)
    assert [chunk["choices"][0]["delta"] for chunk in got[1:]] == [{}]
    assert got[-1]["choices"][0]["token_ids"] == [1, 2]
    body = (await post(FakeEngine(script))).json()
    assert body["choices"][0]["message"]["content"] == ""


async def test_line_breaks_of_every_kind_stay_inside_one_event() -> None:
    text = "a\nb\r\nc\rd\u2028e\u0085f\x00g"
    script = says([Delta(0, text, (1,)), ChoiceFinished(0, FinishReason.STOP), finished(1)])
    got = await chunks(FakeEngine(script))
    assert got[1]["choices"][0]["delta"]["content"] == text
    assert (await post(FakeEngine(script))).json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    "steps",
    [
        [[Failed("the engine failed on this request")]],
        [[Delta(0, "a", (1,))], [Delta(0, "b", (2,))], [Failed("the engine failed on this request")]],
        [[Delta(0, "a", (1,)), ChoiceFinished(0, FinishReason.STOP)], [Failed("the engine failed")]],
    ],
)
async def test_a_fault_is_a_500_or_an_error_event_and_then_done(steps: list[Any]) -> None:
    response = await post(FakeEngine(says(*steps)))
    assert response.status_code == 500
    error = error_of(response)
    assert error["type"] == "server_error"
    assert error["code"] == "internal_error"
    assert response.headers["x-request-id"] in error["message"]

    *others, last = await chunks(FakeEngine(says(*steps)))
    assert set(last) == {"error"}
    assert last["error"]["code"] == "internal_error"
    assert all("error" not in chunk for chunk in others)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in others)


async def test_an_abort_is_never_shown_as_a_finish_reason() -> None:
    script = says([Delta(0, "a", (1,)), ChoiceFinished(0, FinishReason.ABORT), finished(1)])
    assert (await post(FakeEngine(script))).status_code == 500
    got = await chunks(FakeEngine(script))
    assert "error" in got[-1]
    assert "abort" not in [c["finish_reason"] for chunk in got[:-1] for c in chunk["choices"]]


async def test_a_fault_of_the_formatter_still_ends_with_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("kaminari.openai_api.completion.ChunkFormatter.chunks", broken)
    engine = FakeEngine(endless, pause=0.01)
    got = await chunks(engine)
    assert got[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(got)
    assert engine.wait_until_idle()


async def test_the_engine_expects_a_stream_while_its_prompt_is_prepared() -> None:
    engine = FakeEngine()
    during: list[list[bool]] = []
    engine.prepare_hook = lambda: during.append(list(engine.expected))
    await post(engine)
    assert engine.expected == []
    await chunks(engine)
    assert during == [[], [True]]
    assert engine.expected == [True, False]

    def refuse() -> None:
        raise RequestError("no such picture", field="messages")

    engine.prepare_hook = refuse
    assert (await post(engine, stream=True)).status_code == 400
    assert engine.expected == [True, False] * 2


async def test_finished_requests_leave_nothing_running() -> None:
    engine = FakeEngine()
    await post(engine)
    await chunks(engine)
    assert engine.live == 0
    assert engine.aborted == 0
