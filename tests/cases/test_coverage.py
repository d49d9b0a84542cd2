"""Every case has its place: a test that names it or decodes its files, or a reason why it has to wait.

A case is named by the name of a test (`img-bomb` by `test_img_bomb_costs_no_memory`), or by a string that a
test holds or uses: its docstring, a parameter, a table of the module. Comments do not count, and neither do
strings that no test uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cases import loading
from tests.engine import test_picture_decoding

TESTS = Path(__file__).parents[1]
KINDS = (
    *("image", "prompt", "position", "numeric", "limits", "hybrid"),
    *("stream", "sampling", "structured", "tools", "server", "quant"),
)
WAITING = {
    "prompt-glm-echo": "needs GLM-OCR's prompts",
}


@cache
def named() -> frozenset[str]:
    """Names of tests, as the ids of cases are spelled, and all strings that tests use."""
    found: set[str] = set()
    for path in sorted(TESTS.rglob("test_*.py")):
        if path != Path(__file__):
            found.update(_said_by_tests(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(found)


def _said_by_tests(module: ast.Module) -> Iterator[str]:
    parts = {name: node for node in module.body for name in _names(node)}
    for name, node in parts.items():
        if name.startswith("test_"):
            yield name.replace("_", "-")
            yield from _strings(node, parts, set())


def _names(node: ast.stmt) -> list[str]:
    """What a statement of a module defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _strings(node: ast.AST, parts: dict[str, ast.stmt], seen: set[str]) -> Iterator[str]:
    """The strings in a part of a module, and in the parts that it uses."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
        elif isinstance(inner, ast.Name) and inner.id in parts and inner.id not in seen:
            seen.add(inner.id)
            yield from _strings(parts[inner.id], parts, seen)


def is_named(case_id: str) -> bool:
    word = re.compile(rf"(?<![\w-]){case_id}(?![\w-])|^test(?:-.*)?-{case_id}(?:-|$)")
    return any(word.search(text) for text in named())


@cache
def decoded() -> frozenset[str]:
    """Files of the manifest that a test of decoding is run with, as pytest knows it."""
    return frozenset(
        parameter.values[0]
        for name, test in vars(test_picture_decoding).items()
        if name.startswith("test_")
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "parametrize" and mark.args[0] == "name"
        for parameter in mark.args[1]
        if not isinstance(parameter, str)
    )


def is_decoded(case: loading.Case) -> bool:
    """Whether tests of decoding run over all files of a case that holds nothing but files."""
    files = set(case.input.get("files", ()))
    return case.kind == "image" and bool(files) and files <= decoded()


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_is_tested_or_waits_for_a_reason(kind: str) -> None:
    for case in loading.cases(kind):
        tested = is_named(case.id) or is_decoded(case)
        assert tested != (case.id in WAITING), case.id


def test_a_reason_to_wait_is_one_of_a_case() -> None:
    assert set(WAITING) <= {case.id for case in loading.cases()}


def test_every_file_of_the_manifest_is_decoded() -> None:
    assert decoded() == {fact.name for fact in loading.file_facts()}


def test_what_names_a_case() -> None:
    module = ast.parse(
        'TABLE = ["a-b"]\n'
        'UNUSED = "c-d"\n'
        "# e-f\n"
        "def helper():\n    return TABLE\n"
        'def test_g_h_is_right():\n    """Case i-j."""\n    helper()\n'
    )
    said = set(_said_by_tests(module))
    assert {"test-g-h-is-right", "Case i-j.", "a-b"} == said
