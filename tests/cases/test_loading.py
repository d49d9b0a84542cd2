"""The cases are whole: every file is what its manifest says, every shorthand resolves."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from tests.cases import loading


def test_every_file_is_the_one_that_the_manifest_describes() -> None:
    facts = loading.file_facts()
    assert len(facts) > 60
    for fact in facts:
        assert hashlib.sha256(loading.file_bytes(fact.name)).hexdigest() == fact.sha256, fact.name


@pytest.mark.parametrize("case", loading.cases(), ids=lambda case: case.id)
def test_no_shorthand_is_left_after_resolving(case: loading.Case) -> None:
    text = json.dumps(loading.resolve(case.input, "served"))
    for shorthand in ('"@file:', '"@dataurl:', '"@schema:', '"$MODEL"', '"$repeat"'):
        assert shorthand not in text


def test_shorthand_resolves_to_what_it_names() -> None:
    body = loading.case("prompt-order").request("served")
    assert body["model"] == "served"
    url = body["messages"][0]["content"][1]["image_url"]["url"]
    header, _, payload = url.partition(",")
    assert header == "data:image/png;base64"
    assert base64.b64decode(payload) == loading.file_bytes("shape_red_circle.png")
    assert loading.resolve({"$repeat": ["ab ", 2], "$then": "!"}) == "ab ab !"
    assert loading.resolve("@schema:empty") == {}
    assert loading.resolve("a@file:b") == "a@file:b"


def test_an_unknown_case_is_an_error() -> None:
    with pytest.raises(LookupError):
        loading.case("no-such-case")
