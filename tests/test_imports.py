"""The rooms import one way: openai_api -> engine -> model, and config imports none of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kaminari

PACKAGE = Path(kaminari.__file__).parent
ALLOWED = {
    "config": {"config"},
    "model": {"model", "config"},
    "engine": {"engine", "model", "config"},
    "openai_api": {"openai_api", "engine", "config"},
    "bench": {"bench", "smoke", "engine", "model", "config"},
}


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def modules_of(room: str) -> list[Path]:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files, room
    return files


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_one_way(room: str) -> None:
    for path in modules_of(room):
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] == "kaminari" and len(parts) > 1:
                assert parts[1] in ALLOWED[room], f"{path.relative_to(PACKAGE)} imports {module}"


def test_the_api_never_sees_a_tensor() -> None:
    for path in modules_of("openai_api"):
        heavy = {module.split(".")[0] for module in imported_modules(path)} & {
            "torch",
            "transformers",
            "numpy",
        }
        assert not heavy, f"{path.relative_to(PACKAGE)} imports {heavy}"


def test_the_scheduler_holds_no_torch() -> None:
    modules = imported_modules(PACKAGE / "engine" / "scheduler.py")
    assert not {module for module in modules if module.split(".")[0] in {"torch", "numpy", "transformers"}}


@pytest.mark.parametrize("module", ["kaminari", "kaminari.config", "kaminari.cli.main"])
def test_light_modules_load_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_engine_names_no_family() -> None:
    packages = {path.name for path in (PACKAGE / "model").iterdir() if (path / "__init__.py").exists()}
    names = packages - {"kernels", "packs"}
    assert "qwen3_vl" in names
    for path in modules_of("engine") + modules_of("openai_api"):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in names if name in text], path
