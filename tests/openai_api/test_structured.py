"""`response_format` and `structured_outputs` over HTTP, with the demo model, and the cases about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.answer_format import ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat
from kaminari.engine.engine import Engine
from kaminari.engine.events import Delta, Failed
from tests.cases.loading import case, resolve
from tests.openai_api.fake_engine import FakeEngine, says
from tests.openai_api.harness import HI, client_of, error_of, events_of, make_app, post, serving, until_free
from tests.patience import processor_time

NAME = "kaminari-demo"
SCHEMA = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"]}
SMALL = {**SCHEMA, "additionalProperties": False}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=4, context=1200)
    )
    with Engine.load(settings) as loaded:
        yield loaded


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def request_of(case_id: str, **fields: Any) -> dict[str, Any]:
    return {**case(case_id).request(NAME), **fields}


async def answer(engine: Engine, **body: Any) -> tuple[str, str]:
    """Text and finish reason of one choice, after a check that the joined stream has the same."""
    response = await post(engine, **body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    streamed = await post(engine, **body, stream=True)
    chunks = [chunk["choices"][0] for chunk in events_of(streamed.text)]
    text = "".join(chunk["delta"].get("content", "") for chunk in chunks)
    assert (text, chunks[-1]["finish_reason"]) == (choice["message"]["content"], choice["finish_reason"])
    return text, choice["finish_reason"]


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, JsonFormat({"type": "object"}, "response_format")),
        (
            {"response_format": json_schema(SCHEMA, strict=True, description="d")},
            JsonFormat(SCHEMA, "response_format.json_schema.schema"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, JsonFormat(SCHEMA, "structured_outputs.json")),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonFormat(SCHEMA, "structured_outputs.json")),
        (
            {"structured_outputs": {"json_object": True, "regex": None}},
            JsonFormat({"type": "object"}, "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {"regex": "a+"}}, RegexFormat("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ChoiceFormat(("a", "b"))),
        ({"structured_outputs": {"grammar": "start: /a/"}}, GrammarFormat("start: /a/")),
    ],
)
async def test_a_form_reaches_the_engine_as_it_was_sent(fields: dict[str, Any], form: Any) -> None:
    fake = FakeEngine()
    assert (await post(fake, **fields)).status_code == 200
    assert fake.conversations[0].answer_format == form


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": json_schema(None)}, "response_format.json_schema.schema"),
        ({"response_format": json_schema([])}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": json_schema({}, strict="yes")}, "response_format.json_schema.strict"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
    ],
    ids=str,
)
async def test_a_wrong_form_is_a_400_that_names_the_field(fields: dict[str, Any], param: str) -> None:
    fake = FakeEngine()
    response = await post(fake, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert fake.conversations == []


@pytest.mark.parametrize("temperature", [0, 1])
async def test_every_form_is_followed_and_streams_the_same(engine: Engine, temperature: float) -> None:
    body = {"messages": HI, "temperature": temperature, "seed": 4, "max_tokens": 300}
    text, reason = await answer(engine, **body, response_format=json_schema(SMALL))
    assert (json.loads(text)["c"] in ("red", "blue"), reason) == (True, "stop")
    text, reason = await answer(engine, **body, structured_outputs={"regex": "[0-9]{2}:[0-9]{2}"})
    assert (len(text), text[2], reason) == (5, ":", "stop")
    assert await answer(engine, **body, structured_outputs={"choice": ["mol"]}) == ("mol", "stop")
    assert await answer(engine, **body, structured_outputs={"grammar": 'root ::= "yo"'}) == ("yo", "stop")
    text, _ = await answer(engine, **body, response_format={"type": "json_object"})
    assert text.lstrip().startswith("{")


async def test_so_deep(engine: Engine) -> None:
    body = request_of("so-deep")
    statuses = []
    for schema in ("@schema:deep_300", *case("so-deep").input["also"]):
        body["response_format"]["json_schema"]["schema"] = resolve(schema)
        with processor_time(1):
            response = await post(engine, **body, max_tokens=8)
        statuses.append(response.status_code)
        if response.status_code == 400:
            assert error_of(response)["param"] == "response_format.json_schema.schema"
    assert statuses == [400, 400, 400, 200, 200]


async def test_every_hostile_schema_is_answered_or_refused_while_others_are_served(engine: Engine) -> None:
    app, _ = make_app(engine)
    async with client_of(app) as client:
        for name in ("cycle_no_base", "cycle_required", "false", "laughs", "empty", "tree_ok"):
            schema = resolve(f"@schema:{name}")
            fields = {"messages": HI, "max_tokens": 4, "response_format": json_schema(schema)}
            with processor_time(1):
                response = await client.post("/v1/chat/completions", json=fields)
            assert response.status_code == (200 if name in ("laughs", "empty", "tree_ok") else 400)
    await until_free(engine)


async def test_so_ignored_vision(engine: Engine) -> None:
    text, reason = await answer(engine, **request_of("so-ignored-vision"))
    assert json.loads(text)["c"] in ("red", "blue")
    assert reason == "stop"


async def test_so_whitespace(engine: Engine) -> None:
    """The receipt's answer is valid or was cut; the bound itself is in the tests of grammars."""
    text, reason = await answer(engine, **request_of("so-whitespace"))
    assert " " * 9 not in "".join(text.split('"')[::2])
    if reason == "stop":
        json.loads(text)


async def test_so_unicode(engine: Engine) -> None:
    for seed in range(4):
        text, reason = await answer(engine, **request_of("so-unicode", temperature=1, seed=seed))
        text.encode()
        if reason == "stop":
            json.dumps(json.loads(text), ensure_ascii=False).encode()
        else:
            assert reason == "length"


async def test_a_grammar_that_fails_while_it_runs_is_the_requests_fault() -> None:
    script = says([Delta(0, '{"a', (1,))], [Failed("it is too costly", "response_format")])
    whole = await post(FakeEngine(script), response_format={"type": "json_object"})
    assert whole.status_code == 400
    streamed = events_of((await post(FakeEngine(script), stream=True)).text)
    for error in (error_of(whole), streamed[-1]["error"]):
        assert error["message"] == "it is too costly"
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            "response_format",
            "grammar_failed",
        )


class Pick(BaseModel):
    side: bool
    colour: bool | None


def test_the_sdk_parses_an_answer_into_a_model(engine: Engine) -> None:
    with (
        serving(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        parsed = client.chat.completions.parse(
            model=NAME, messages=[{"role": "user", "content": "Pick."}], response_format=Pick, seed=1
        )
        assert isinstance(parsed.choices[0].message.parsed, Pick)
        with client.chat.completions.stream(
            model=NAME, messages=[{"role": "user", "content": "Pick."}], response_format=Pick, seed=1
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.parsed == parsed.choices[0].message.parsed
