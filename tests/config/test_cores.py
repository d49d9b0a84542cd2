"""Cores that a process may use: the machine's, its affinity's, and those of a container's quota."""

from __future__ import annotations

import math
from pathlib import Path

import psutil
import pytest

from kaminari.config import cores
from kaminari.config.cores import quota, usable_cores

MAX = "cpu.max"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A system whose process is in these control groups."""
    inside = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in ({"proc/self/cgroup": groups} | inside).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, math.inf),
        ("0::/\n", {MAX: "150000 100000\n"}, 1.5),
        ("0::/\n", {MAX: "max 100000\n"}, math.inf),
        ("0::/a/b\n", {f"a/b/{MAX}": "max 100000", f"a/{MAX}": "400000 100000"}, 4.0),
        ("0::/a/b\n", {f"a/b/{MAX}": "50000 100000", f"a/{MAX}": "400000 100000"}, 0.5),
        ("0::/gone\n", {MAX: "300000 100000"}, 3.0),
        ("2:cpu,cpuacct:/\n", {f"cpu/{QUOTA}": "200000\n", f"cpu/{PERIOD}": "100000\n"}, 2.0),
        ("2:cpu,cpuacct:/\n", {f"cpu/{QUOTA}": "-1\n", f"cpu/{PERIOD}": "100000\n"}, math.inf),
        ("3:memory:/\n2:cpu:/x\n0::/\n", {f"cpu/x/{QUOTA}": "100000", f"cpu/x/{PERIOD}": "50000"}, 2.0),
        ("3:memory:/\n", {MAX: "100000 100000"}, math.inf),
        ("nonsense\n::\n", {MAX: "what is this"}, math.inf),
        ("0::/\n", {MAX: "100000 0"}, math.inf),
    ],
)
def test_quotas_of_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], expected: float
) -> None:
    assert quota(system(tmp_path, groups, files)) == expected


def test_what_cannot_be_read_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)
    assert quota(tmp_path) == math.inf


@pytest.mark.parametrize(
    ("affinity", "limit", "expected"),
    [
        ([0, 2, 4], math.inf, 3),
        ([0, 2, 4], 2.9, 2),
        ([0, 2, 4], 0.5, 1),
        (list(range(16)), math.inf, 8),
        ([], math.inf, 8),
        (list(range(16)), 20.0, 8),
    ],
)
def test_the_least_of_machine_affinity_and_quota_counts(
    monkeypatch: pytest.MonkeyPatch, affinity: list[int], limit: float, expected: int
) -> None:
    class Process:
        def cpu_affinity(self) -> list[int]:
            return affinity

    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)
    monkeypatch.setattr(cores, "quota", lambda: limit)
    assert usable_cores() == expected
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    assert usable_cores() == 1


def test_of_logical_cores_there_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(16)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)
    monkeypatch.setattr(cores, "quota", lambda: math.inf)
    assert (usable_cores(), usable_cores(logical=True)) == (8, 16)
