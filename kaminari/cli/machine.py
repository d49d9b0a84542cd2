"""What this machine offers a model: versions, devices, memory, and what is missing. Changes nothing."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata

import psutil
import torch

from kaminari.bench.machine import cpu_name
from kaminari.engine.capacity import format_bytes
from kaminari.engine.memory import available_memory, cgroup_headroom
from kaminari.engine.placement import cpu_bfloat16_features, multiplies_bfloat16
from kaminari.model.delta_kernels import has_fla

COMPILERS = ("c++", "g++", "clang++", "cl")
# what an extra of ours brings, by the module that shows that it is there
EXTRAS = {"openai": "examples"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the report."""

    name: str
    value: str


def versions() -> list[Fact]:
    """Python and the libraries that decide how a model runs."""
    if torch.version.cuda is not None:
        build = f"for CUDA {torch.version.cuda}"
    else:
        build = "for ROCm" if torch.version.hip is not None else "for the CPU only"
    fla = [Fact("flash-linear-attention", metadata.version("fla-core"))] if has_fla() else []
    return [
        Fact("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Fact("torch", f"{torch.__version__}, built {build}"),
        Fact("transformers", metadata.version("transformers")),
        *fla,
    ]


def devices() -> list[Fact]:
    """The CPU, and every CUDA device that is visible."""
    return [_cpu(), *(_cuda(index) for index in range(torch.cuda.device_count()))]


def memory(limit: int | None) -> list[Fact]:
    """Free memory of the host (within its control group, if that has a bound), and the limit that is set."""
    host = psutil.virtual_memory()
    free = f"{format_bytes(available_memory(torch.device('cpu')))} of {format_bytes(host.total)} free"
    headroom = cgroup_headroom()
    if headroom is not None:
        free += f"; the control group leaves {format_bytes(headroom)}"
    return [
        Fact("memory", free),
        Fact("memory limit", "none is set" if limit is None else format_bytes(limit)),
    ]


def missing() -> list[str]:
    """What is not there, and what that means. None of it keeps a model from being served."""
    notes = []
    if not torch.cuda.is_available():
        notes.append("no CUDA device: models run on the CPU, which is slow for all but small ones")
    if not torch.cuda.is_available() and not multiplies_bfloat16(torch.device("cpu")):
        notes.append(
            "this CPU has no bfloat16 instructions: auto means float32, which takes twice the memory"
        )
    if torch.cuda.is_available() and not has_fla():
        notes.append(
            "no flash-linear-attention (kaminari[fla]): hybrid models read prompts with our own form"
        )
    if not any(shutil.which(compiler) for compiler in COMPILERS):
        notes.append(
            "no C++ compiler: models run on the CPU with torch's kernels, which are slower than ours"
        )
    notes += [
        f"{module} is not installed: pip install 'kaminari[{extra}]' brings it"
        for module, extra in EXTRAS.items()
        if importlib.util.find_spec(module) is None
    ]
    return notes


def _cpu() -> Fact:
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    has = [name for name, there in cpu_bfloat16_features().items() if there]
    features = [torch.backends.cpu.get_cpu_capability(), *(has or ["no bfloat16 instructions"])]
    return Fact("cpu", f"{cpu_name()}, {cores} {'core' if cores == 1 else 'cores'}, {', '.join(features)}")


def _cuda(index: int) -> Fact:
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    bfloat16 = "bfloat16" if multiplies_bfloat16(device) else "no bfloat16"
    return Fact(
        f"cuda:{index}",
        f"{properties.name}, compute {properties.major}.{properties.minor}, {bfloat16}, "
        f"{format_bytes(available_memory(device))} of {format_bytes(properties.total_memory)} free",
    )
