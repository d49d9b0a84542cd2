"""Whether a checkpoint's head is its embedding: what the files hold decides, and a config that says otherwise
is named in a warning. Never makes a head up.

Checkpoints contradict themselves: `tie_word_embeddings` stands at two levels of `config.json`, and files are
saved after training with another flag than before. The reference reads the flag at the top alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

import torch

from kaminari.model.loading import StoredTensor, open_file

log = logging.getLogger("kaminari.model")

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"
ROWS_AT_ONCE = 4096


def head_is_tied(tensors: Mapping[str, StoredTensor], *, top: bool, text: bool) -> bool:
    """Whether the head is the embedding. A stored head is the head, and is one with the embedding only where
    a flag says so and the two are equal; without one a flag is enough. Raises `CheckpointError`.

    top, text:  `tie_word_embeddings` of the config and of its `text_config`
    """
    if EMBEDDING not in tensors:
        return top
    folder = tensors[EMBEDDING].file.parent
    if HEAD not in tensors:
        if text and not top:
            _warn(
                f"{folder / 'config.json'}: tie_word_embeddings is true in text_config alone, and there is "
                f"no {HEAD}: the head is {EMBEDDING}"
            )
        return top or text
    if not (top or text):
        return False
    if _equal(tensors[HEAD], tensors[EMBEDDING]):
        return True
    _warn(
        f"{folder / 'config.json'} ties {HEAD} to {EMBEDDING}, and the two differ: the head is {HEAD}; "
        "set tie_word_embeddings to false"
    )
    return False


def _equal(head: StoredTensor, embedding: StoredTensor) -> bool:
    if (head.shape, head.dtype) != (embedding.shape, embedding.dtype):
        return False
    with open_file(head.file) as mine, open_file(embedding.file) as other:
        ours, theirs = mine.get_slice(HEAD), other.get_slice(EMBEDDING)
        return all(
            torch.equal(ours[row : row + ROWS_AT_ONCE], theirs[row : row + ROWS_AT_ONCE])
            for row in range(0, head.shape[0], ROWS_AT_ONCE)
        )


@cache
def _warn(message: str) -> None:
    """Say it once: a folder is opened several times before it is loaded."""
    log.warning(message)
