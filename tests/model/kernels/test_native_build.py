"""The library is built once for this CPU and found again, and where it cannot be there is aten and a word."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kaminari.model.kernels.native import build
from kaminari.model.kernels.native.build import native_kernels

needs_compiler = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not any(shutil.which(name) for name in build.COMPILERS),
    reason="no C++ compiler",
)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, and no library remembered; sources that build in no time."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("pool.cpp", "parallel.h", "team.h", "export.h"):
        shutil.copyfile(build.SOURCES / name, sources / name)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.kernels_of.cache_clear()
    yield tmp_path / "cache" / "kaminari" / "kernels"
    build.kernels_of.cache_clear()


@needs_compiler
def test_a_library_is_built_once_in_a_folder_of_its_owner(empty_cache: Path) -> None:
    assert build.foreseen_word() == f"native {build.cpu_level()} (not built yet)"
    first = native_kernels()
    assert first.library is not None
    assert first.word == f"native {build.cpu_level()}" == build.foreseen_word()
    assert empty_cache.stat().st_mode & 0o777 == 0o700
    (file,) = empty_cache.iterdir()
    written = file.stat().st_mtime_ns
    build.kernels_of.cache_clear()
    assert native_kernels().library is not None
    (file,) = empty_cache.iterdir()
    assert file.stat().st_mtime_ns == written


@needs_compiler
def test_another_source_is_another_library(empty_cache: Path) -> None:
    native_kernels()
    with (build.SOURCES / "pool.cpp").open("a") as source:
        source.write("// changed\n")
    build.kernels_of.cache_clear()
    assert native_kernels().library is not None
    assert len(list(empty_cache.iterdir())) == 2


@needs_compiler
def test_a_damaged_library_is_built_anew(empty_cache: Path) -> None:
    native_kernels()
    (file,) = empty_cache.iterdir()
    file.unlink()
    file.write_bytes(b"not a library")
    build.kernels_of.cache_clear()
    assert native_kernels().library is not None


@needs_compiler
def test_threads_are_those_of_torch(empty_cache: Path) -> None:
    library = native_kernels().library
    assert isinstance(library, ctypes.CDLL)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert library.kaminari_threads() == threads
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_a_source_that_does_not_compile_leaves_aten(empty_cache: Path) -> None:
    (build.SOURCES / "pool.cpp").write_text("not C++")
    kernels = native_kernels()
    assert kernels.library is None
    assert kernels.word.startswith("aten (")
    assert "failed: " in kernels.reason
    assert not list(empty_cache.iterdir())


@needs_compiler
def test_a_library_with_unknown_symbols_leaves_aten(empty_cache: Path) -> None:
    with (build.SOURCES / "pool.cpp").open("a") as source:
        source.write(
            'extern "C" int kaminari_nowhere();\nKAMINARI int kaminari_it() { return kaminari_nowhere(); }\n'
        )
    kernels = native_kernels()
    assert kernels.library is None
    assert "kaminari_nowhere" in kernels.reason


def test_no_compiler_leaves_aten(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ())
    assert native_kernels().library is None
    if sys.platform.startswith("linux"):
        assert native_kernels().word == "aten (no C++ compiler)" == build.foreseen_word()


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_a_folder_that_others_may_write_is_not_used(empty_cache: Path) -> None:
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    kernels = native_kernels()
    assert kernels.library is None
    assert kernels.reason == f"the cache folder {empty_cache} is open to other users"


@needs_compiler
def test_a_cache_that_cannot_be_made_leaves_aten(empty_cache: Path) -> None:
    empty_cache.parent.parent.mkdir()
    empty_cache.parent.write_text("a file")
    kernels = native_kernels()
    assert kernels.library is None
    assert "no cache folder" in kernels.reason


@pytest.mark.parametrize(
    ("capability", "levels"), [("default", {"portable"}), ("avx2", {"avx2", "portable"})]
)
def test_torch_s_own_switch_lowers_the_level(capability: str, levels: set[str]) -> None:
    code = "from kaminari.model.kernels.native.build import cpu_level; print(cpu_level())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() in levels
