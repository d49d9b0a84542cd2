"""How much memory is free on a device, in a container as well as on a bare machine. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil
import torch

PROC_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # version 1 spells "no limit" as a number near 2**63


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate on the device without swapping or being killed."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free = int(psutil.virtual_memory().available)
    headroom = cgroup_headroom()
    return free if headroom is None else min(free, headroom)


def cgroup_headroom(membership: Path = PROC_CGROUP, root: Path = CGROUP_ROOT) -> int | None:
    """Bytes left below the tightest memory limit of this process's control groups, or None without one.

    Reads version 2 and version 1. File pages that the kernel can drop at once do not count as used.
    """
    rooms = [room for group in _memory_groups(membership, root) if (room := _room(group)) is not None]
    return max(0, min(rooms)) if rooms else None


def _memory_groups(membership: Path, root: Path) -> Iterator[Path]:
    """The process's own group and its ancestors up to the mount, where they are visible."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            mounts = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [root / "memory"]
        else:
            continue
        parts = PurePosixPath(path).parts[1:]
        if ".." in parts:  # outside of this process's namespace
            parts = ()
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                yield mount.joinpath(*parts[:depth])


def _room(group: Path) -> int | None:
    """Limit minus use of one group; None where it sets no limit or cannot be read."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (group / limit_name).read_text(encoding="utf-8").strip()
            usage = int((group / usage_name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if limit == "max" or int(limit) >= UNLIMITED:
            return None
        return int(limit) - usage + _droppable(group / "memory.stat", cache_name)
    return None


def _droppable(stat: Path, name: str) -> int:
    try:
        lines = stat.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
