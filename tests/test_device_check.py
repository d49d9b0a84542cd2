"""`scripts/device_check wheels` names all that the code imports and a CUDA image may lack.

Nothing can be fetched there, and one module that does not import keeps every test from running.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CODE = ("kaminari", "tests", "benchmarks")
# what images with torch and transformers have, themselves or as what those need
IN_THE_IMAGE = frozenset(
    {
        "anyio",
        "attrs",
        "certifi",
        "click",
        "filelock",
        "h11",
        "httpcore",
        "httpx",
        "huggingface-hub",
        "hypothesis",
        "idna",
        "iniconfig",
        "jinja2",
        "markdown-it-py",
        "markupsafe",
        "mdurl",
        "numpy",
        "packaging",
        "pillow",
        "pluggy",
        "prometheus-client",
        "psutil",
        "pygments",
        "pytest",
        "pyyaml",
        "requests",
        "rich",
        "safetensors",
        "sortedcontainers",
        "tokenizers",
        "torch",
        "tqdm",
        "transformers",
        "triton",
        "typing-extensions",
    }
)
# the plots' own requirements, and the fuzzer's
ELSEWHERE = {"matplotlib", "schemathesis"}
# `pytest.importorskip` lets a test go without it
OPTIONAL = {"trustme"}
TARGET = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": ""}


def wheels() -> set[str]:
    script = (ROOT / "scripts" / "device_check").read_text(encoding="utf-8")
    found = re.search(r'names="([^"]+)"', script)
    assert found is not None
    return set(found[1].split())


def imported() -> Iterator[str]:
    """The top-level modules that the code imports; tests of clients have environments of their own."""
    for room in CODE:
        for path in (ROOT / room).rglob("*.py"):
            if path.is_relative_to(ROOT / "tests" / "clients"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from (alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield node.module.split(".")[0]


def test_everything_that_is_imported_is_there_or_travels() -> None:
    here = metadata.packages_distributions()
    needed = set()
    own = {"examples", *CODE, *(path.stem for path in (ROOT / "examples").glob("*.py"))}
    for module in set(imported()) - sys.stdlib_module_names - own - ELSEWHERE:
        needed |= {canonicalize_name(name) for name in here[module]}
    assert needed - IN_THE_IMAGE - wheels() - OPTIONAL == set()


def test_what_travels_brings_all_that_it_needs() -> None:
    missing = set()
    for name in wheels():
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(TARGET):
                missing.add(canonicalize_name(requirement.name))
    assert missing - IN_THE_IMAGE - wheels() == set()


def test_every_wheel_is_pinned() -> None:
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(line.split("==")[0]) for line in pins.splitlines() if "==" in line}
    assert wheels() <= pinned
