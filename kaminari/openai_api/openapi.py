"""`GET /openapi.json`: the routes and schemas of this very application as an OpenAPI 3.1 document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kaminari import __version__
from kaminari.openai_api.responses import JsonResponse
from kaminari.openai_api.schemas import responses
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.completions import CompletionRequest
from kaminari.openai_api.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from kaminari.openai_api.security import OPEN_PATHS

Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"
_NULL = {"type": "null"}
_ABOUT = ("title", "description", "default")
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass(frozen=True, slots=True)
class Operation:
    """What a path takes and gives. `streams` is the data of an event, where the answer may be a stream."""

    summary: str
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | None = None
    streams: type[BaseModel] | None = None


OPERATIONS: Mapping[str, Operation] = {
    "/v1/chat/completions": Operation(
        "Answer a conversation of text and pictures",
        ChatRequest,
        responses.ChatCompletion,
        responses.ChatCompletionChunk,
    ),
    "/v1/completions": Operation(
        "Go on from a text",
        CompletionRequest,
        responses.TextCompletion,
        responses.TextCompletion,
    ),
    "/tokenize": Operation("Count the tokens of a prompt", TokenizeRequest, responses.Tokenized),
    "/detokenize": Operation("Give the text of tokens", DetokenizeRequest, responses.Detokenized),
    "/v1/models": Operation("List the served model and its aliases", gives=responses.ModelList),
    "/v1/models/{id:path}": Operation("Describe one model", gives=responses.Model),
    "/health": Operation("Say whether requests are served", gives=responses.HealthBody),
    "/version": Operation("Say what is served", gives=responses.VersionBody),
    "/metrics": Operation("Give figures in Prometheus' text format"),
    "/openapi.json": Operation("Give this document"),
}


class OpenApi:
    """The document of the application that it is asked through, made once."""

    def __init__(self, *, keys: bool) -> None:
        """`keys`: whether requests need an API key."""
        self._keys = keys
        self._document: Json | None = None

    async def handle(self, http: Request) -> Response:
        if self._document is None:
            routes = [route for route in http.app.routes if isinstance(route, Route)]
            self._document = document(routes, keys=self._keys)
        return JsonResponse(self._document)


def document(routes: Sequence[Route], *, keys: bool) -> Json:
    """Describe the routes; one that `OPERATIONS` does not know is listed by its path alone."""
    schemas = _schemas()
    paths: Json = {}
    for route in routes:
        operation = OPERATIONS.get(route.path, Operation(route.path))
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            described = _operation(operation, path, method.lower())
            if keys and route.path not in OPEN_PATHS:
                described["security"] = [{"bearer": []}, {"header": []}]
            paths.setdefault(path, {})[method.lower()] = described
    components: Json = {"schemas": schemas}
    if keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "kaminari", "version": __version__, "summary": "OpenAI's API for a local model"},
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, path: str, method: str) -> Json:
    described: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method}{path}").strip("_"),
        "summary": operation.summary,
        "responses": {
            "200": {"description": "A success", **_answer(operation)},
            "default": {"description": "A failure", **_content(responses.ErrorBody)},
        },
    }
    if operation.gives is responses.HealthBody:
        described["responses"]["503"] = {"description": "Not served now", **_content(responses.HealthBody)}
    if operation.takes is not None:
        described["requestBody"] = {"required": True, **_content(operation.takes)}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    if parameters:
        described["parameters"] = parameters
    return described


def _answer(operation: Operation) -> Json:
    answer = {} if operation.gives is None else _content(operation.gives)
    if operation.streams is not None:
        answer["content"]["text/event-stream"] = {"schema": _event(operation.streams)}
    return answer


def _event(model: type[BaseModel]) -> Json:
    """An event as OpenAPI 3.2 and its tools see one: an object, whose data is JSON or the end."""
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": _reference(model)}
    data = {"anyOf": [{"const": "[DONE]"}, chunk]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _content(model: type[BaseModel]) -> Json:
    return {"content": {"application/json": {"schema": _reference(model)}}}


def _reference(model: type[BaseModel]) -> Json:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


class _Generator(GenerateJsonSchema):
    """Describes what validators of ours take: their stated input, or else the type that they are put on."""

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        stated = schema.get("json_schema_input_schema")
        if stated is not None and stated["type"] != "any":
            return self.generate_inner(stated)
        # pydantic keeps the type that a plain validator stands on for serialization alone
        kept = cast(Json, schema.get("serialization", {})).get("schema")
        return super().function_plain_schema(schema) if kept is None else self.generate_inner(kept)


def _schemas() -> Json:
    models = {
        model
        for operation in OPERATIONS.values()
        for model in (operation.takes, operation.gives, operation.streams, responses.ErrorBody)
        if model is not None
    }
    _, found = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REFERENCE,
        schema_generator=_Generator,
    )
    schemas: Json = found["$defs"]
    for schema in schemas.values():
        if schema.get("additionalProperties") is False:
            _allow_nulls(schema)
    return schemas


def _allow_nulls(schema: Json) -> None:
    """In a request null is the same as absent, which the types of the fields do not say. So an unknown field
    may be there too, if it is null.
    """
    schema["additionalProperties"] = _NULL
    for name, described in schema["properties"].items():
        if name in schema.get("required", ()):
            continue
        says = {key: described.pop(key) for key in tuple(described) if key not in _ABOUT}
        options = says.pop("anyOf", [says] if says else [])
        if options:
            described["anyOf"] = options if _NULL in options else [*options, _NULL]
