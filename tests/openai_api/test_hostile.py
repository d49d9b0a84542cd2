"""Hostile bodies: whatever is sent, the answer is a 200, a 400 or a 404 in its right shape, never a 500."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaminari.config import ServerSettings, Settings
from kaminari.openai_api.intake import BODIES
from kaminari.openai_api.schemas.chat import ChatRequest
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, HI, AsgiCall, client_of, error_of, events_of, make_app
from tests.patience import processor_time

PARTS = {"role": "user", "content": [{"type": "text", "text": ""}] * 4096}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL] * 1024}

LIMITS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
urls = st.sampled_from(["data:image/png;base64,AAAA", "data:,", "http://a", "data:x;base64,=", ""]) | anything
parts = anything | st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "file", "refusal", "input_image", ""]) | anything},
    optional={
        "text": anything,
        "image_url": st.fixed_dictionaries({"url": urls}, optional={"detail": anything}) | urls,
        "refusal": anything,
    },
)
messages = anything | st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"]) | anything,
        "content": st.lists(parts, max_size=3) | anything,
    },
    optional={"name": anything, "tool_calls": anything, "refusal": anything, "audio": anything},
)
good_message = st.just({"role": "user", "content": "hi"})
bodies = st.fixed_dictionaries(
    {"messages": st.lists(messages | good_message, max_size=3) | anything},
    optional={name: anything for name in ChatRequest.model_fields if name != "messages"},
)
nearly_good = st.builds(
    lambda field, value: {"messages": [{"role": "user", "content": "hi"}], field: value},
    st.sampled_from(sorted(set(ChatRequest.model_fields) - {"messages"})),
    anything,
)


def send(content: bytes, path: str = CHAT) -> httpx.Response:
    async def once() -> httpx.Response:
        app, _ = make_app(FakeEngine())
        async with client_of(app) as client:
            return await client.post(path, content=content)

    return asyncio.run(once())


def check(response: httpx.Response) -> None:
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert "is not valid" not in error["message"] or error["code"] == "invalid_json"
    elif response.headers["content-type"].startswith("text/event-stream"):
        events_of(response.text)
    else:
        assert response.json()["choices"]


@LIMITS
@given(bodies | anything | nearly_good)
def test_any_json_is_answered_or_refused(body: Any) -> None:
    check(send(orjson.dumps(body)))


@LIMITS
@given(st.binary(max_size=64) | st.text(st.sampled_from('{}[]",:nul0-e.\\ud8'), max_size=40).map(str.encode))
def test_any_bytes_are_answered_or_refused(body: bytes) -> None:
    assert send(body).status_code == 400


@LIMITS
@given(nearly_good)
def test_one_strange_field_is_named(body: dict[str, Any]) -> None:
    (field,) = set(body) - {"messages"}
    response = send(orjson.dumps(body))
    check(response)
    if response.status_code != 200:
        assert error_of(response)["param"].startswith(field)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, {"messages": [PARTS] * 40}, 400, "messages"),
        (CHAT, {"messages": [CALLS] * 100}, 400, "messages"),
        ("/tokenize", {"messages": [PARTS] * 40}, 400, "messages"),
        ("/detokenize", {"tokens": [1] * 300_000}, 400, "tokens"),
        (CHAT, {"messages": [], "metadata": [[]] * 2_000_000}, 413, None),
        ("/v1/completions", {"prompt": [1] * 2_000_000}, 413, None),
    ],
    ids=["parts", "calls", "parts to count", "ids", "values", "prompt"],
)
def test_what_holds_too_much_is_refused_before_it_is_looked_into(
    path: str, body: Any, status: int, param: str | None
) -> None:
    encoded = orjson.dumps(body)
    with processor_time(1):
        response = send(encoded, path)
    assert response.status_code == status
    assert error_of(response)["param"] == param


def test_as_much_as_is_allowed_is_answered() -> None:
    text = "a,b" * 300_000
    check(send(orjson.dumps({"messages": [PARTS, PARTS, {"role": "user", "content": text}]})))
    assert send(orjson.dumps({"tokens": [1] * 262_144}), "/detokenize").status_code == 200


class HeldBack(AsgiCall):
    """A body of which the last byte never comes; `waits` once all that comes was taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waits = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self.body, "more_body": True}
        self.waits.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_bodies_that_are_held_back_take_bounded_memory_together() -> None:
    most = 2**20
    app, _ = make_app(FakeEngine(), Settings(server=ServerSettings(max_body="1MiB")))
    held = [HeldBack(app, b" " * (most - 1)) for _ in range(BODIES)]
    tasks = [asyncio.create_task(call.run()) for call in held]
    async with client_of(app) as client:
        await asyncio.gather(*(call.waits.wait() for call in held))
        refused = await client.post(CHAT, json={"messages": HI})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert error_of(refused)["code"] == "queue_full"
        assert (await client.get("/health")).status_code == 200
        for call in held:
            call.gone.set()
        await asyncio.gather(*tasks)
        assert (await client.post(CHAT, json={"messages": HI})).status_code == 200
