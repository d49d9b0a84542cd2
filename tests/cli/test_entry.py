"""The command's first module: an interruption while the rest is imported ends it as any other does."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kaminari.cli import entry, main

ROOT = Path(__file__).parents[2]


def test_an_interrupted_import_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_import = builtins.__import__

    def interrupted(name: str, *args: object, **kwargs: object) -> object:
        if name == "kaminari.cli.main":
            raise KeyboardInterrupt
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert entry.main() == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupted_command_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "main", interrupted)
    assert entry.main() == 130
    monkeypatch.setattr(main, "main", lambda: 7)
    assert entry.main() == 7


def test_both_ways_to_call_it_start_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["kaminari"].partition(":")
    assert getattr(importlib.import_module(module), name) is entry.main
    done = subprocess.run([sys.executable, "-m", "kaminari", "flz"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("kaminari: unknown command 'flz'")


def test_it_imports_nothing_that_takes_time() -> None:
    code = "import sys, kaminari.cli.entry; print(len([m for m in sys.modules if m.startswith('kaminari')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout) == 4, "kaminari, its cli, the entry and the errors"
