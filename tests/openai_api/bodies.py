"""Random request bodies made from the OpenAPI document: mostly right, often a little wrong, or absurd."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

TEXT = st.one_of(
    st.sampled_from(["", "hi", "What is 3+4?", "<|im_end|>", "<|image_pad|>", "\x00", "ß€😀", "a" * 300]),
    st.text(max_size=20),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2, 16, 1e-9, 0.5, 1.5, -0.0, 1e308, 2**31, 2**63, 2**64]),
    TEXT,
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ADDRESSES = st.one_of(
    st.sampled_from(
        [
            "data:image/png;base64,iVBORw0KGgo=",
            "data:,x",
            "data:image/png;base64,",
            "http://127.0.0.1/",
            "file:///etc/hostname",
            "",
        ]
    ),
    TEXT,
)


def value(schema: Json, schemas: Json, depth: int = 0) -> st.SearchStrategy[Any]:
    """A value that the schema allows, as far as the schema says."""
    if "$ref" in schema:
        return value(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas, depth + 1)
    if "anyOf" in schema:
        return st.one_of([value(option, schemas, depth + 1) for option in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            return TEXT
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            return st.one_of(
                st.integers(schema.get("minimum", 0), 12), st.integers(schema.get("minimum", -(2**64)))
            )
        case "number":
            return st.one_of(st.floats(0, 2), st.floats(allow_nan=False, allow_infinity=False))
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(
                value(schema.get("items", {}), schemas, depth + 1), min_size=least, max_size=least + 2
            )
        case "object" if "properties" in schema:
            return _object(schema, schemas, depth)
        case "object":
            return st.dictionaries(TEXT, SCALARS, max_size=3)
        case _:
            return ANYTHING


def _object(schema: Json, schemas: Json, depth: int) -> st.SearchStrategy[Json]:
    required = set(schema.get("required", ()))
    known = {
        name: ADDRESSES if name == "url" else value(field, schemas, depth + 1)
        for name, field in schema["properties"].items()
    }
    optional = [name for name in known if name not in required]
    some = st.lists(st.sampled_from(optional), max_size=4, unique=True) if optional else st.just([])
    return some.flatmap(
        lambda names: st.fixed_dictionaries({name: known[name] for name in (*sorted(required), *names)})
    )


@st.composite
def bodies(draw: st.DrawFn, schema: Json, schemas: Json) -> Any:
    """A body: a half as the schema wants it, the others with one to three places changed."""
    body = draw(value(schema, schemas))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3]))):
        body = _changed(draw, body)
    return body


def _changed(draw: st.DrawFn, body: Any) -> Any:
    """The body with one place, however deep, replaced, removed or added."""
    if isinstance(body, dict) and body and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(body)))
        if not draw(st.integers(0, 4)):
            return {key: item for key, item in body.items() if key != name}
        return {**body, name: _changed(draw, body[name])}
    if isinstance(body, dict) and draw(st.booleans()):
        return {**body, draw(TEXT): draw(ANYTHING)}
    if isinstance(body, list) and body and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(body) - 1))
        return [*body[:place], _changed(draw, body[place]), *body[place + 1 :]]
    return draw(ANYTHING)
