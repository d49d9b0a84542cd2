"""Which texts an XML call with right arguments may be, for a grammar to hold an answer to.

Parameters come in the order of the schema; each is spelled by `xml_value_spelling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaminari.model.calls import (
    Maybe,
    Parameters,
    RawText,
    Repeated,
    Spelling,
    TextForm,
    UnspeakableArguments,
    Written,
)
from kaminari.model.json_pointer import resolve
from kaminari.model.xml_tags import CALL_END, FUNCTION_END, FUNCTION_START, PARAMETER_START
from kaminari.model.xml_value_spelling import ValueSpeller

MAX_REFERENCES = 32
_NAME = TextForm({"pattern": r"^[^<>\s]{1,64}$"})
_NOT_OF_PARAMETERS = {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "const", "enum"}
_NOT_OF_PARAMETERS |= {"patternProperties", "propertyNames", "minProperties", "maxProperties"}
_NOT_OF_PARAMETERS |= {"dependentRequired", "dependentSchemas", "dependencies"}


def spell_call(name: str, parameters: Parameters) -> Spelling:
    """What follows `<tool_call>` in a call of this tool. Raises `UnspeakableArguments`."""
    before, after = Written(f"\n{FUNCTION_START}{name}>\n"), Written(f"{FUNCTION_END}\n{CALL_END}")
    return before, *_spell_parameters(parameters), after


def _spell_parameters(root: Parameters) -> Spelling:
    schema = _naming_schema(root)
    properties = dict(schema.get("properties") or {})
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    others = schema.get("additionalProperties", True)
    for name in required:
        properties.setdefault(name, others)
    speller = ValueSpeller(root)
    if properties:
        parts = (_parameter(name, value, name in required, speller) for name, value in properties.items())
        return tuple(part for spelled in parts for part in spelled)
    if others is False:
        return ()
    any_name = RawText((_NAME,), (), ">\n")
    return (Repeated((Written(PARAMETER_START), any_name, *speller.spell(others))),)


def _naming_schema(root: Parameters) -> Mapping[str, Any]:
    """The schema that names the parameters, behind references."""
    schema: Any = root
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = resolve(str(schema["$ref"]), root)
    if not isinstance(schema, Mapping) or "$ref" in schema:
        raise UnspeakableArguments("its reference leads to no schema")
    for keyword in sorted(_NOT_OF_PARAMETERS & schema.keys()):
        raise UnspeakableArguments(f"`{keyword}` at its top level is not supported in calls of this model")
    return schema


def _parameter(name: str, schema: Any, required: bool, speller: ValueSpeller) -> Spelling:
    if schema is False and not required:
        return ()
    if not name or any(mark in name for mark in "<>\n"):
        raise UnspeakableArguments("a parameter has a name that calls of this model cannot spell")
    spelled = (Written(f"{PARAMETER_START}{name}>\n"), *speller.spell(schema))
    return spelled if required else (Maybe(spelled),)
