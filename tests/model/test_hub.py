"""Hub ids become folders, and every way that can fail is one line. No network: the client is a stand-in."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kaminari.model import hub
from kaminari.model.family import CheckpointError

RESPONSE = httpx.Response(500, request=httpx.Request("GET", "https://hub.invalid/api"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (GatedRepoError("gated\nyou need access", response=RESPONSE), "asks for a licence"),
        (RepositoryNotFoundError("404\nnot found", response=RESPONSE), "is not on the hub, or it is private"),
        (RevisionNotFoundError("404\nrevision", response=RESPONSE), "has no revision 'v9'"),
        (LocalEntryNotFoundError("no\nlocal copy"), "the hub cannot be reached, and it has left no copy"),
        (HFValidationError("bad\nname"), "is not a hub id of the form org/name"),
        (HfHubHTTPError("500\nserver", response=RESPONSE), "the hub refused org/name@v9: 500 server"),
        (OSError("no space\nleft"), "cannot download org/name@v9: no space left"),
    ],
)
def test_every_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, line: str) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as caught:
        hub.download_checkpoint("org/name", "v9")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_what_a_checkpoint_needs_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def answer(repo: str, **kwargs: Any) -> str:
        asked.update(kwargs, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", answer)
    assert hub.download_checkpoint("org/name") == tmp_path
    assert (asked["repo"], asked["revision"]) == ("org/name", None)

    def wanted(name: str) -> bool:
        allowed = any(fnmatch(name, pattern) for pattern in asked["allow_patterns"])
        return allowed and not any(fnmatch(name, pattern) for pattern in asked["ignore_patterns"])

    for name in (
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "chat_template.jinja",
        "merges.txt",
    ):
        assert wanted(name), name
    for name in ("modeling_custom.py", "pytorch_model.bin", "README.md", "original/model.safetensors"):
        assert not wanted(name), name


def test_no_network_and_no_copy_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real client, told to stay offline, with an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="it has left no copy of it"):
        hub.download_checkpoint("nobody/nothing-here")
