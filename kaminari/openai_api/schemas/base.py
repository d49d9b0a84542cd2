"""The base of all request schemas: strict types, unknown fields refused, null the same as absent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from kaminari.config.problems import closest

PROBLEM = "problem"
_SHOWN = 64
_ALIKE = 0.72

Ignored = Any
"""A field that is accepted and has no effect."""


def problem(says: str, *, code: str = "invalid_value", at: str | None = None) -> PydanticCustomError:
    """An error of a field.

    says:  a phrase that follows the field's path, such as `must be an object`
    at:    a key below the field that the error is about
    """
    return PydanticCustomError(PROBLEM, "is not valid", {"says": says, "code": code, "at": at})


def unknown_field(name: str, known: Iterable[str]) -> PydanticCustomError:
    """An error that names a field nobody knows, and the known one that was most likely meant."""
    shown = name[:_SHOWN]
    near = closest(shown, known, _ALIKE)
    hint = f"; did you mean `{near}`?" if near else ""
    return problem(f"is not a known field{hint}", code="unknown_parameter", at=shown)


class Schema(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Null is the same as absent at every level; the first unknown field is an error."""
        if not isinstance(value, dict):
            raise problem("must be an object", code="invalid_type")
        given = {name: item for name, item in value.items() if item is not None}
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in given:
            if name not in known:
                raise unknown_field(name, known)
        return given


def not_supported(*neutral: Any) -> PlainValidator:
    """Validate a field of the API that this version cannot honour: only values that change nothing pass."""

    def check(value: Any) -> Any:
        for harmless in neutral:
            if isinstance(value, bool) == isinstance(harmless, bool) and value == harmless:
                return value
        harmless_forms = "".join(f" or send {orjson.dumps(form).decode()}" for form in neutral)
        raise problem(
            f"is not supported yet by this version of kaminari; leave it out{harmless_forms}",
            code="unsupported_parameter",
        )

    return PlainValidator(check)
