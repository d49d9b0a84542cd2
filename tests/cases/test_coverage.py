"""Every case has its place: a test that names it (or its files), or a reason why it has to wait."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import loading

TESTS = Path(__file__).parents[1]
KINDS = (
    "image",
    "prompt",
    "position",
    "numeric",
    "limits",
    "hybrid",
    "stream",
    "sampling",
    "structured",
    "tools",
    "server",
)

# Tests that run over files of the manifest cover the image cases that hold nothing but files.
BY_FILES = {
    "img-exif-jpeg",
    "img-alpha-black",
    "img-la-two-channels",
    "img-16bit-grey",
    "img-cmyk",
    "img-animated",
    "img-wrong-mime",
    "img-mpo",
    "img-truncated-wedges",
    "img-1x1",
    "img-ratio",
    "img-bomb",
    "img-big-honest",
    "img-resize-filter",
}
WAITING = {
    "prompt-glm-echo": "needs GLM-OCR's prompts",
}


def test_every_case_of_these_kinds_is_tested_or_waits_for_a_reason() -> None:
    sources = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for kind in KINDS:
        for case in loading.cases(kind):
            named = re.search(rf"(?<![\w-]){case.id}(?![\w-])", text) is not None
            places = [named, case.id in BY_FILES, case.id in WAITING]
            assert sum(places) == 1, f"{case.id}: {places}"


def test_the_cases_by_files_have_files_of_the_manifest() -> None:
    known = {fact.name for fact in loading.file_facts()}
    for case_id in BY_FILES:
        files = loading.case(case_id).input["files"]
        assert files
        assert set(files) <= known
