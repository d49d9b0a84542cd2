"""Reads the cases of this folder and resolves their shorthand into real request bodies.

Never changes a case: what a test adds to one (a field, a second turn) it adds to its own copy.
"""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FILES = FOLDER / "files"

# The labels a careless client would send: by file name, right or wrong.
LABELS = {
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".tif": "image/tiff",
    ".webp": "image/webp",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of `cases.jsonl`; `input` still holds its shorthand (see `resolve`)."""

    id: str
    kind: str
    source: str
    symptom: str
    input: dict[str, Any]
    expected: str
    severity: str

    def request(self, model: str = "model") -> dict[str, Any]:
        """The request body, resolved. Raises KeyError where the case has steps or a recipe only."""
        return resolve(self.input["request"], model)


@dataclass(frozen=True, slots=True)
class FileFact:
    """What `manifest.json` says of one picture file.

    expect:  ok, reject, ok-or-reject
    size:    (width, height) after orientation, or None
    probes:  (x, y, (red, green, blue), tolerance)
    """

    name: str
    expect: str
    size: tuple[int, int] | None
    probes: tuple[tuple[int, int, tuple[int, int, int], int], ...]
    sha256: str


@functools.cache
def _cases() -> tuple[Case, ...]:
    lines = (FOLDER / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Case(**json.loads(line)) for line in lines if line.strip())


def cases(kind: str | None = None) -> list[Case]:
    """All cases, or those of one kind."""
    return [case for case in _cases() if kind is None or case.kind == kind]


def case(case_id: str) -> Case:
    """The case with this id. Raises LookupError."""
    for candidate in _cases():
        if candidate.id == case_id:
            return candidate
    raise LookupError(case_id)


@functools.cache
def _json_file(name: str) -> Any:
    return json.loads((FILES / name).read_text(encoding="utf-8"))


def file_facts() -> list[FileFact]:
    """What the manifest says of every picture file."""
    facts = []
    for name, fact in _json_file("manifest.json").items():
        if fact["expect"] == "n/a":
            continue
        size = None if fact["size"] is None else (fact["size"][0], fact["size"][1])
        probes = tuple((x, y, tuple(colour), tolerance) for x, y, colour, tolerance in fact["probes"])
        facts.append(FileFact(name, fact["expect"], size, probes, fact["sha256"]))
    return facts


def data_urls() -> dict[str, dict[str, str]]:
    """Name -> {"url", "expect"}: spellings of one 32 x 32 red PNG, and other addresses."""
    urls: dict[str, dict[str, str]] = _json_file("data_urls.json")
    return urls


def file_bytes(name: str) -> bytes:
    return (FILES / name).read_bytes()


def file_url(name: str) -> str:
    """A data URL of a picture file, labelled by its name."""
    label = LABELS[Path(name).suffix]
    return f"data:{label};base64,{base64.b64encode(file_bytes(name)).decode()}"


def resolve(value: Any, model: str = "model") -> Any:
    """Return a copy of `value` with "@file:", "@dataurl:", "@schema:", "$MODEL" and "$repeat" filled in."""
    if isinstance(value, str):
        prefix, colon, name = value.partition(":")
        if value == "$MODEL":
            return model
        if colon and prefix == "@file":
            return file_url(name)
        if colon and prefix == "@dataurl":
            return data_urls()[name]["url"]
        if colon and prefix == "@schema":
            return _json_file("schemas.json")[name]
        return value
    if isinstance(value, list):
        return [resolve(item, model) for item in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            text, count = value["$repeat"]
            return str(text) * int(count) + str(value.get("$then", ""))
        return {key: resolve(item, model) for key, item in value.items()}
    return value
