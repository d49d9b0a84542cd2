"""What a result says of the machine and of the code: no host name, no user, no path."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil
import torch

import kaminari
from kaminari.bench.result import Machine
from kaminari.config.cores import usable_cores

GIT_SECONDS = 10.0


def describe_machine() -> Machine:
    cuda = torch.cuda.is_available()
    return Machine(
        cpu=cpu_name(),
        cores=usable_cores(logical=True),
        memory=psutil.virtual_memory().total,
        accelerator=torch.cuda.get_device_properties(torch.cuda.current_device()).name if cuda else None,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=metadata.version("transformers"),
    )


def cpu_name() -> str:
    """The processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def commit() -> str | None:
    """The commit that this package was checked out at, with `-dirty` where its files differ from it.

    None where the package is no part of a git checkout.
    """
    folder = Path(kaminari.__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else head


def _git(folder: Path, *line: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *line],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
