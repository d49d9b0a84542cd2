"""What real clients send, as it was captured, is accepted: a request that is refused here breaks that client.

`tests/assets/client_requests.jsonl` has one body of each shape that the tests of `scripts/test --clients`
send, with pictures of one pixel; the versions are in docs/clients.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.openai_api.fake_engine import INFO, FakeEngine
from tests.openai_api.harness import events_of, post

CAPTURED = Path(__file__).parents[1] / "assets" / "client_requests.jsonl"
REQUESTS = [json.loads(line) for line in CAPTURED.read_text(encoding="utf-8").splitlines()]


def test_every_client_is_there() -> None:
    assert {request["client"] for request in REQUESTS} == {
        "AI SDK",
        "instructor",
        "LangChain",
        "litellm",
        "llm",
        "openai JavaScript",
        "Open WebUI",
    }


@pytest.mark.parametrize("number", range(len(REQUESTS)), ids=[request["client"] for request in REQUESTS])
async def test_a_captured_request_is_answered(number: int) -> None:
    body: dict[str, Any] = REQUESTS[number]["body"]
    response = await post(FakeEngine(), **{**body, "model": INFO.model})
    assert response.status_code == 200, response.text
    if body.get("stream"):
        assert events_of(response.text)
    else:
        assert response.json()["choices"][0]["message"]["role"] == "assistant"
