"""How many of the machine's cores this process may use: by its affinity, and by a container's quota."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/")


def usable_cores(*, logical: bool = False) -> int:
    """Cores that this process may use, at least 1: physical ones unless `logical`, of a quota whole ones."""
    there = psutil.cpu_count(logical=logical) or 1
    process = psutil.Process()
    usable = len(process.cpu_affinity() or []) if hasattr(process, "cpu_affinity") else 0
    return max(1, min(there, usable or there, int(min(quota(), there))))


def quota(root: Path = _ROOT) -> float:
    """Cores' worth of time that Linux's control groups leave to this process; infinite without a limit."""
    return min(_quotas(root), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    """Those of the process's group and of all groups around it, in either version of control groups."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        mount = root / "sys/fs/cgroup"
        if "cpu" in controllers.split(","):
            mount /= "cpu"
        elif controllers:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            if controllers:
                words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
            else:
                words = _read(folder / "cpu.max").split()
            if len(words) == 2 and all(word.strip().isdigit() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
