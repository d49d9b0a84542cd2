"""From requests to the engine's words: roles, the order of parts, details, parameters."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kaminari.engine.conversation import Detail, PicturePart, Role, TextPart
from kaminari.engine.errors import ContextLengthExceeded, RequestError
from kaminari.engine.params import SamplingParams
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import error_of, post

BYTES = b"\x89PNG not really"
URL = "data:image/png;base64," + base64.b64encode(BYTES).decode()


async def conversation(**fields: Any) -> Any:
    engine = FakeEngine()
    response = await post(engine, **fields)
    assert response.status_code == 200, response.text
    return engine.conversations[0]


async def params(**fields: Any) -> SamplingParams:
    engine = FakeEngine()
    response = await post(engine, **fields)
    assert response.status_code == 200, response.text
    return engine.params[0]


async def test_roles_and_turns_keep_their_order() -> None:
    got = await conversation(
        messages=[
            {"role": "developer", "content": "a"},
            {"role": "system", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": "", "refusal": "d"},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "e"}]},
            {"role": "user", "content": "f"},
        ]
    )
    assert [(message.role, message.parts) for message in got.messages] == [
        (Role.SYSTEM, (TextPart("a"),)),
        (Role.SYSTEM, (TextPart("b"),)),
        (Role.USER, (TextPart("c"),)),
        (Role.ASSISTANT, ()),
        (Role.ASSISTANT, (TextPart(""), TextPart("d"))),
        (Role.TOOL, (TextPart("e"),)),
        (Role.USER, (TextPart("f"),)),
    ]


async def test_text_and_pictures_keep_their_order_and_place() -> None:
    parts = [
        {"type": "text", "text": "1"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "text", "text": "2"},
        {"type": "image_url", "image_url": URL},
        {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
        {"type": "image_url", "image_url": {"url": URL, "detail": "original"}},
    ]
    for role in ("system", "user", "tool"):
        got = await conversation(
            messages=[{"role": "user", "content": "x"}, {"role": role, "content": parts}]
        )
        assert got.messages[1].parts == (
            TextPart("1"),
            PicturePart(BYTES, Detail.LOW, "messages[1].content[1]"),
            TextPart("2"),
            PicturePart(BYTES, Detail.AUTO, "messages[1].content[3]"),
            PicturePart(BYTES, Detail.HIGH, "messages[1].content[4]"),
            PicturePart(BYTES, Detail.HIGH, "messages[1].content[5]"),
        )


@pytest.mark.parametrize(
    ("fields", "generate", "go_on"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
    ],
)
async def test_the_template_is_told_how_to_end(fields: dict[str, Any], generate: bool, go_on: bool) -> None:
    got = await conversation(**fields)
    assert (got.add_generation_prompt, got.continue_final_message) == (generate, go_on)


async def test_parameters_are_handed_over() -> None:
    got = await params(
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=-3,
        n=2,
        stop=["a", "b"],
        ignore_eos=True,
    )
    assert got == SamplingParams(9, 0.0, 0.5, 7, 0.25, -3, ("a", "b"), 2, True)
    assert await params() == SamplingParams()


async def test_the_newer_name_of_the_token_bound_wins() -> None:
    assert (await params(max_tokens=3, max_completion_tokens=4)).max_tokens == 4
    assert (await params(max_completion_tokens=10_000_000)).max_tokens == 10_000_000


async def test_one_stop_string_need_not_be_a_list() -> None:
    assert (await params(stop="END")).stop == ("END",)
    assert (await params(stop=[])).stop == ()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/a.png",
        "https://example.com/a.png",
        "file:///etc/hostname",
        "ftp://a/b",
        "a.png",
        "",
        "data:image/png;base64,####",
        "data:image/png;base64,",
        "data:image/png,abc",
    ],
)
@pytest.mark.parametrize("form", ["object", "string"])
async def test_an_address_that_is_no_data_url_is_a_400(url: str, form: str) -> None:
    engine = FakeEngine()
    value = {"url": url} if form == "object" else url
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": value}],
    }
    response = await post(engine, messages=[message], stream=True)
    assert response.status_code == 400
    error = error_of(response)
    path = "messages[0].content[1].image_url"
    assert error["param"] == (f"{path}.url" if form == "object" else path)
    assert not url or url not in error["message"]
    assert engine.conversations == []


async def test_what_the_engine_refuses_is_passed_on() -> None:
    engine = FakeEngine()

    def refuse() -> None:
        raise RequestError("the picture is broken", field="messages[0].content[0]", code="bad_picture")

    engine.prepare_hook = refuse
    error = error_of(await post(engine, stream=True))
    assert error == {
        "message": "the picture is broken",
        "type": "invalid_request_error",
        "param": "messages[0].content[0]",
        "code": "bad_picture",
    }


async def test_a_prompt_that_does_not_fit_gives_both_numbers() -> None:
    engine = FakeEngine()

    def refuse() -> None:
        raise ContextLengthExceeded(200, 128)

    engine.submit_hook = refuse
    response = await post(engine, stream=True)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert "200" in error["message"]
    assert "128" in error["message"]
