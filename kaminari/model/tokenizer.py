"""Loads a checkpoint's tokenizer as the reference does, so that ids are the reference's.

Runs no code of the checkpoint and asks no hub.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kaminari.model.family import CheckpointError


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a checkpoint folder. Raises `CheckpointError`."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds for what is one fault: no usable tokenizer
        raise CheckpointError(f"cannot load the tokenizer of {folder}: {_first_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(f"the tokenizer of {folder} has no tokenizer.json form, which is needed")
    return tokenizer


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
