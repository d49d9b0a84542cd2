"""Which tokens of a checkpoint stand for a picture and end an answer, from its files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from kaminari.model.family import CheckpointError


def control_token(tokenizer: PreTrainedTokenizerFast, token_id: int, folder: Path) -> str:
    """Spelling of the picture marker `image_token_id`. Raises `CheckpointError`."""
    token = tokenizer.added_tokens_decoder.get(token_id)
    if token is None or not token.special:
        raise CheckpointError(
            f"image_token_id {token_id} of {folder} is not a control token of its tokenizer"
        )
    return str(token.content)


def end_token_ids(folder: Path, config: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """What `generation_config.json` names; without it, what the config and the tokenizer name.

    In Qwen's tokenizers the padding token is <|endoftext|>, which ends an answer as <|im_end|> does.
    Raises `CheckpointError`.
    """
    named = _generation_eos(folder)
    if named is None:
        named = [
            config.get("eos_token_id"),
            config.get("text_config", {}).get("eos_token_id"),
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        ]
    ids: set[int] = set()
    for entry in named if isinstance(named, list) else [named]:
        ids.update(entry if isinstance(entry, list) else [] if entry is None else [entry])
    if not ids or not all(isinstance(token_id, int) for token_id in ids):
        raise CheckpointError(f"no usable end token (eos_token_id) in the files of {folder}")
    return frozenset(ids)


def _generation_eos(folder: Path) -> Any:
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
