"""Where the cache lies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kaminari.config.folders import cache_folder


@pytest.mark.skipif(sys.platform == "win32", reason="XDG is not for Windows")
def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "kaminari"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="each system has a place of its own")
@pytest.mark.parametrize("named", ["", "relative/folder", None])
def test_without_an_absolute_name_it_is_in_the_home(
    named: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if named is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert cache_folder() == tmp_path / ".cache" / "kaminari"
