"""From a hub id to a local folder. Fetches weights (safetensors), configuration and tokenizer: never code."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kaminari.model.family import CheckpointError

NEEDED_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt")
SUBFOLDERS = ("*/*",)


def download_checkpoint(repo: str, revision: str | None = None) -> Path:
    """Return the folder of a hub repository, at a revision or at its head. Files that are there stay.

    repo:  a hub id, such as `Qwen/Qwen3-VL-2B-Instruct`

    Raises `CheckpointError` where it cannot be had: no such repository, no access, no network and no copy.
    """
    name = repo if revision is None else f"{repo}@{revision}"
    try:
        folder = snapshot_download(
            repo, revision=revision, allow_patterns=list(NEEDED_FILES), ignore_patterns=list(SUBFOLDERS)
        )
    except GatedRepoError as error:
        raise CheckpointError(f"{name} asks for a licence to be accepted; log in to the hub first") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{name} is not on the hub, or it is private") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repo} is on the hub, but has no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"no folder {name} is here, the hub cannot be reached, and it has left no copy of it"
        ) from error
    except HFValidationError as error:
        raise CheckpointError(f"{name} is not a hub id of the form org/name") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused {name}: {_one_line(error)}") from error
    except OSError as error:
        raise CheckpointError(f"cannot download {name}: {_one_line(error)}") from error
    return Path(folder)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
