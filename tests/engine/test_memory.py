"""Free memory in containers: the tightest control group decides, whatever its version."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from kaminari.engine import memory
from kaminari.engine.memory import available_memory, cgroup_headroom


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def membership(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "membership"
    path.write_text(text)
    return path


def test_version_2(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "a" / "b", {"memory.max": "1000", "memory.current": "400"})
    group(root / "a", {"memory.max": "max", "memory.current": "400"})
    assert cgroup_headroom(membership(tmp_path, "0::/a/b\n"), root) == 600


def test_the_tightest_ancestor_decides(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "a" / "b", {"memory.max": "1000", "memory.current": "100"})
    group(root / "a", {"memory.max": "1000", "memory.current": "900"})
    assert cgroup_headroom(membership(tmp_path, "0::/a/b\n"), root) == 100


def test_file_pages_that_can_be_dropped_are_free(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(
        root,
        {
            "memory.max": "1000",
            "memory.current": "900",
            "memory.stat": "anon 500\ninactive_file 300\nactive_file 100",
        },
    )
    assert cgroup_headroom(membership(tmp_path, "0::/\n"), root) == 400


def test_version_1(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    files = {
        "memory.limit_in_bytes": "2000",
        "memory.usage_in_bytes": "500",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 100",
    }
    group(root / "memory" / "docker" / "x", files)
    lines = "5:devices:/docker/x\n4:cpu,memory:/docker/x\n0::/\n"
    assert cgroup_headroom(membership(tmp_path, lines), root) == 1600


def test_a_group_that_is_mounted_as_the_root_of_a_container(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root, {"memory.max": "1000", "memory.current": "1"})
    assert cgroup_headroom(membership(tmp_path, "0::/system.slice/docker-1.scope\n"), root) == 999


def test_more_used_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root, {"memory.max": "1000", "memory.current": "1200"})
    assert cgroup_headroom(membership(tmp_path, "0::/\n"), root) == 0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory.max": "max", "memory.current": "5"},
        {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "5"},
        {"memory.max": "1000"},
        {"memory.max": "1000", "memory.current": "soon"},
    ],
)
def test_no_limit_that_can_be_read_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    root = tmp_path / "cgroup"
    group(root, files)
    group(root / "memory", files)
    assert cgroup_headroom(membership(tmp_path, "3:memory:/\n0::/\n"), root) is None


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::relative\n", "::\n\n", "0::/../../x\n"])
def test_a_strange_membership_is_no_limit(tmp_path: Path, text: str) -> None:
    assert cgroup_headroom(membership(tmp_path, text), tmp_path / "cgroup") is None


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert cgroup_headroom(tmp_path / "missing", tmp_path / "cgroup") is None


def test_the_cpu_has_the_smaller_of_machine_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine._replace(available=1000))
    for headroom, free in ((None, 1000), (400, 400), (4000, 1000)):
        monkeypatch.setattr(memory, "cgroup_headroom", lambda headroom=headroom: headroom)
        assert available_memory(torch.device("cpu")) == free


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_memory_is_that_of_the_device() -> None:
    device = torch.device("cuda", 0)
    free, total = torch.cuda.mem_get_info(device)
    assert 0 < available_memory(device) <= total
    assert abs(available_memory(device) - free) < total // 10
