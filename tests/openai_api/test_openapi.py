"""`/openapi.json` describes this application: every route, every field, and answers that are as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from kaminari.config import ServerSettings, Settings
from kaminari.openai_api.openapi import OPERATIONS
from kaminari.openai_api.schemas import responses
from kaminari.openai_api.schemas.chat import ChatRequest
from tests.openai_api.fake_engine import INFO, FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, events_of, make_app

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


async def fetch(**server: Any) -> dict[str, Any]:
    app, _ = make_app(FakeEngine(), Settings(server=ServerSettings(**server)))
    async with client_of(app) as client:
        key = {"X-Api-Key": "k"}
        response = await client.get("/openapi.json", headers=key)
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


async def test_every_route_is_there_and_every_reference_leads_somewhere() -> None:
    document = await fetch()
    assert document["openapi"].startswith("3.1.")
    app, _ = make_app(FakeEngine())
    routes = {re.sub(r":\w+", "", route.path) for route in app.routes}
    assert set(document["paths"]) == routes
    for path, methods in document["paths"].items():
        assert path.startswith("/")
        for method, operation in methods.items():
            assert method in ("get", "post")
            assert {"200", "default"} <= set(operation["responses"])
            assert all("description" in answer for answer in operation["responses"].values())
            names = {parameter["name"] for parameter in operation.get("parameters", [])}
            assert names == set(re.findall(r"\{(\w+)\}", path))
            assert operation["responses"]["default"]["content"]["application/json"]["schema"] == {
                "$ref": "#/components/schemas/ErrorBody"
            }
    ids = [
        operation["operationId"] for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len(set(ids)) == len(ids)
    schemas = document["components"]["schemas"]
    used = references(document)
    assert used <= {f"#/components/schemas/{name}" for name in schemas}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in schemas)


async def test_the_chat_request_has_every_field_and_refuses_others() -> None:
    schema = (await fetch())["components"]["schemas"]["ChatRequest"]
    assert set(schema["properties"]) == set(ChatRequest.model_fields)
    assert schema["required"] == ["messages"]
    assert schema["additionalProperties"] == {"type": "null"}
    roles = references(schema["properties"]["messages"])
    assert {name.rsplit("/", 1)[1] for name in roles} == {
        "SystemMessage",
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
    }
    stop = schema["properties"]["stop"]["anyOf"]
    assert {"type": "string"} in stop
    assert {"type": "array", "items": {"type": "string"}} in stop


def schemas_within(value: Any) -> list[dict[str, Any]]:
    """Every object below a part of the document that has a default."""
    if isinstance(value, list):
        return [found for item in value for found in schemas_within(item)]
    if not isinstance(value, dict):
        return []
    return [*([value] if "default" in value else []), *schemas_within(list(value.values()))]


async def test_every_schema_is_one_and_takes_its_own_defaults() -> None:
    components = (await fetch())["components"]
    for name, schema in components["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        for described in schemas_within(schema):
            validator = jsonschema.Draft202012Validator({**described, "components": components})
            assert validator.is_valid(described["default"]), (name, described)


async def test_a_field_that_may_be_absent_may_be_null() -> None:
    components = (await fetch())["components"]
    requests = [
        schema
        for schema in components["schemas"].values()
        if schema.get("additionalProperties") == {"type": "null"}
    ]
    assert len(requests) > 10
    for schema in requests:
        for name, described in schema["properties"].items():
            validator = jsonschema.Draft202012Validator({**described, "components": components})
            if name not in schema.get("required", ()):
                assert validator.is_valid(None), (schema["title"], name)


async def test_a_stream_is_described_as_its_events() -> None:
    document = await fetch()
    for path, chunk in ((CHAT, "ChatCompletionChunk"), ("/v1/completions", "TextCompletion")):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        event = content["text/event-stream"]["schema"]
        end, piece = event["properties"]["data"]["anyOf"]
        assert end == {"const": "[DONE]"}
        assert piece["contentSchema"] == {"$ref": f"#/components/schemas/{chunk}"}
        assert (piece["type"], piece["contentMediaType"]) == ("string", "application/json")


async def test_keys_are_described_where_they_are_needed() -> None:
    assert "securitySchemes" not in (await fetch())["components"]
    document = await fetch(api_keys=["k"])
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    assert "security" not in document["paths"]["/health"]["get"]
    assert document["paths"][CHAT]["post"]["security"] == [{"bearer": []}, {"header": []}]


def extras(value: Any) -> list[str]:
    """Fields that a response model does not name."""
    if isinstance(value, list):
        return [name for item in value for name in extras(item)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for item in value.__dict__.values() for name in extras(item)]
    return [*inner, *(value.model_extra or {})]


async def test_answers_are_as_the_document_says() -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        body = {"messages": HI, "timings": True}
        whole = await client.post(CHAT, json=body)
        stream = await client.post(
            CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        answers = {
            "chat": responses.ChatCompletion.model_validate(whole.json()),
            "models": responses.ModelList.model_validate((await client.get("/v1/models")).json()),
            "model": responses.Model.model_validate((await client.get(f"/v1/models/{INFO.model}")).json()),
            "health": responses.HealthBody.model_validate((await client.get("/health")).json()),
            "version": responses.VersionBody.model_validate((await client.get("/version")).json()),
            "error": responses.ErrorBody.model_validate((await client.get("/nowhere")).json()),
        }
    for name, answer in answers.items():
        assert extras(answer) == [], name
    for chunk in events_of(stream.text):
        assert extras(responses.ChatCompletionChunk.model_validate(chunk)) == []


def table_of(section: str) -> list[str]:
    """The first column of the table below a heading of the page, cells of several names split."""
    page = API_PAGE.read_text(encoding="utf-8")
    start = page.index(f"\n## {section}\n")
    text = page[start : page.find("\n## ", start + 1)]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("path", "operation"),
    [item for item in OPERATIONS.items() if item[1].takes is not None],
    ids=lambda item: str(item)[:30],
)
def test_the_page_has_every_field_of_every_request(path: str, operation: Any) -> None:
    fields = table_of(f"`POST {path}`")
    assert len(set(fields)) == len(fields)
    assert set(fields) == set(operation.takes.model_fields)


def test_the_page_has_every_endpoint() -> None:
    assert set(table_of("Endpoints")) == {re.sub(r":\w+", "", path) for path in OPERATIONS}
