"""The Triton kernels build for cards that are not here, and fit into a block's shared memory there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = {86: 99 * 1024, 90: 227 * 1024}
"""Most bytes of a block by compute capability (CUDA C++ programming guide, table of technical
specifications); 8.9 and 12.0 have as much as 8.6."""


def test_every_kernel_builds_and_fits(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    environment.pop("TRITON_INTERPRET", None)
    program = Path(__file__).with_name("triton_builds.py")
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {card for card, _, _ in found} == set(SHARED_MEMORY)
    too_much = [(card, name, needed) for card, name, needed in found if needed > SHARED_MEMORY[card]]
    assert not too_much
