"""Builds the C++ sources of this folder for this CPU, once, and loads them.

The library is a plain C one, called through ctypes, so that it needs none of torch's headers: it builds in
seconds and one binary serves every Python. It is kept in an owner-only cache folder, under a name that holds
a digest of all that it depends on. It shares torch's own pool of OpenMP threads (`parallel.h`).

Nothing here ever fails: where there is no library, `NativeKernels.reason` says why, and torch's own kernels
(aten) are used.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kaminari.config.cores import usable_cores
from kaminari.config.folders import FolderError, cache_folder, owned
from kaminari.model.kernels.native.library import declare

log = logging.getLogger("kaminari.kernels")

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno"),
)
BFLOAT_LEVEL = "avx512-vnni"
"""The level whose CPUs multiply bfloat16."""
LEVELS: dict[str, tuple[str, ...]] = {
    BFLOAT_LEVEL: (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mavx512vnni"),
        *("-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    "portable": (),
}
BUILD_SECONDS = 300
SWITCHED_OFF = "switched off"


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The library, or why there is none.

    level:   which of `LEVELS` it is built for
    reason:  empty where there is a library
    """

    library: ctypes.CDLL | None
    level: str
    reason: str = ""

    @property
    def word(self) -> str:
        """What a report says of it: `native avx512-vnni`, or `aten (no C++ compiler)`."""
        return f"aten ({self.reason})" if self.reason else f"native {self.level}"


_allowed: ContextVar[bool] = ContextVar("kaminari_native_kernels", default=True)


class BuildError(Exception):
    """Why there is no library; the message is one line."""


def native_kernels(level: str | None = None) -> NativeKernels:
    """Load the library, after building it where this machine has none yet. Says so in the log.

    level:  one of `LEVELS` that this CPU can run, by default the best
    """
    return kernels_of(level, _allowed.get())


@cache
def kernels_of(level: str | None, allowed: bool) -> NativeKernels:
    """`native_kernels` of a thread that may use them, or may not."""
    level = level or cpu_level()
    if not allowed:
        return NativeKernels(None, level, SWITCHED_OFF)
    try:
        return NativeKernels(declare(_load(level)), level)
    except BuildError as error:
        log.info("CPU kernels: aten (%s)", error)
        return NativeKernels(None, level, str(error))


def allow_native(allowed: bool) -> None:
    """Whether this thread may use native kernels: what the setting `model.kernels` of its engine says."""
    _allowed.set(allowed)


def foreseen_word(allowed: bool = True) -> str:
    """What `native_kernels().word` will most likely be, told without building anything."""
    if not allowed:
        return f"aten ({SWITCHED_OFF})"
    try:
        level = cpu_level()
        built = _target(level).exists()
    except BuildError as error:
        return f"aten ({error})"
    return f"native {level}" + ("" if built else " (not built yet)")


def cpu_level() -> str:
    """The best of `LEVELS` that this CPU can run; torch's `ATEN_CPU_CAPABILITY` lowers it."""
    capability = torch.backends.cpu.get_cpu_capability()
    if platform.machine().lower() not in ("x86_64", "amd64") or capability in ("DEFAULT", "NO AVX"):
        return "portable"
    # torch has no public question for these; where a private one is gone, the answer is no
    questions = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "vnni"))
    return BFLOAT_LEVEL if capability != "AVX2" and all(ask() for ask in questions) else "avx2"


def _load(level: str) -> ctypes.CDLL:
    target = _target(level)
    if target.exists():
        try:
            return ctypes.CDLL(str(target))
        except OSError:
            log.info("CPU kernels: %s is damaged and is built anew", target)
    log.info("CPU kernels: building them for %s; this takes some seconds and happens once", level)
    began = time.perf_counter()
    compile_library(target, LEVELS[level])
    log.info("CPU kernels: built in %.0f s", time.perf_counter() - began)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise BuildError(f"the built library does not load: {' '.join(str(error).split())}") from error


def compile_library(target: Path, flags: tuple[str, ...]) -> None:
    """Compile every source with these flags and put the library in place at once. Raises `BuildError`.

    As many compilers run side by side as this process has processors. Two processes may build at the same
    time: each has a folder of its own, and the last one's file stays.
    """
    compiler = _compiler()
    # the largest first: what is compiled last should not take long
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: path.stat().st_size, reverse=True)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            library = Path(scratch) / target.name

            def compile_source(source: Path) -> str:
                made = str(library.with_name(f"{source.stem}.o"))
                _run(compiler, *FLAGS, *flags, "-c", str(source), "-o", made)
                return made

            with ThreadPoolExecutor(usable_cores(logical=True)) as pool:
                objects = list(pool.map(compile_source, sources))
            _run(compiler, *FLAGS, *flags, "-shared", *objects, "-o", str(library))
            library.replace(target)
    except subprocess.CalledProcessError as error:
        log.debug("the compiler said:\n%s", error.stderr)
        first = next((line for line in error.stderr.splitlines() if "error" in line), "no details")
        raise BuildError(f"{Path(compiler).name} failed: {first.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{Path(compiler).name} took over {BUILD_SECONDS} s") from error
    except OSError as error:
        raise BuildError(f"the build failed: {error.strerror or error}") from error


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)


def _compiler() -> str:
    if not sys.platform.startswith("linux"):
        raise BuildError(f"no native kernels for {platform.system()}")
    for name in COMPILERS:
        if found := shutil.which(name):
            return found
    raise BuildError("no C++ compiler")


def _target(level: str) -> Path:
    """The library's file, named after all that it depends on."""
    compiler = _compiler()
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{compiler} does not run") from error
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((FLAGS, LEVELS[level], version, torch.__version__, platform.machine())).encode())
    try:
        folder = owned(cache_folder() / "kernels")
    except FolderError as error:
        raise BuildError(str(error)) from error
    return folder / f"{level}-{digest.hexdigest()[:24]}.so"
