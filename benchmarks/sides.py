"""A hybrid checkpoint in kaminari and in `transformers` behind the same verbs: prefill, decode, encode.

Both sides run on the CPU in one process, in the same dtype and with the same threads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import LoadOptions, find_family
from kaminari.model.picture import Picture

CPU = torch.device("cpu")


class Ours:
    """kaminari's model, driven in steps as the engine drives it: prefill chunks, then one token at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype, capacity: int, chunk: int) -> None:
        self.model: Any = find_family(folder).load(folder, LoadOptions(CPU, dtype, dtype))
        self.cache: SlotCache = self.model.new_cache(1, capacity)
        self.chunk = chunk
        self.length = 0

    def prefill(self, ids: Tensor) -> int:
        """Run a prompt [T] in chunks on the claimed slot and return the next token."""
        self.cache.claim(0)
        self.length = 0
        for tokens in ids.split(self.chunk):
            hidden = self._step(tokens)
        return int(self.model.head(hidden[-1:]).argmax())

    def decode(self, token: int) -> int:
        """Feed one token and return the next one."""
        return int(self.model.head(self._step(torch.tensor([token]))).argmax())

    def encode(self, picture: Picture) -> Tensor:
        """Vision rows [N, hidden]."""
        rows: Tensor = self.model.encode_picture(picture).embeddings
        return rows

    def _step(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[0]
        positions = torch.arange(self.length, self.length + count).expand(3, -1)
        self.length += count
        lengths = RowLengths((0,), (count,), (self.length,))
        batch = StepBatch(
            tokens=tokens,
            positions=positions,
            slots=torch.tensor([0]),
            q_lens=torch.tensor([count], dtype=torch.int32),
            kv_lens=torch.tensor([self.length], dtype=torch.int32),
            logit_rows=torch.tensor([count - 1]),
            host=lengths,
        )
        hidden: Tensor = self.model.forward(batch, self.cache)
        return hidden


class Theirs:
    """The reference, whole prompts at once, as its `generate` runs them.

    Its MiniCPM-V computes logits for every prompt token; `prefill` asks for the last one's only, unless told.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, local_files_only=True)
        self.model: Any = model.eval()
        self._cache: Any = None
        self._cache_name = "cache"  # what this version of the reference calls it

    def prefill(self, ids: Tensor, *, every_logit: bool = False) -> int:
        """Run a prompt [T] and return the next token."""
        if every_logit:
            output = self.model(input_ids=ids[None], use_cache=True)
            logits = output.logits[0, -1]
        else:
            output = self.model.model(input_ids=ids[None], use_cache=True)
            logits = self.model.lm_head(output[0][0, -1])
        self._cache_name = "cache" if "cache" in output else "past_key_values"
        self._cache = output[self._cache_name]
        return int(logits.argmax())

    def decode(self, token: int) -> int:
        """Feed one token and return the next one."""
        options = {self._cache_name: self._cache, "use_cache": True}
        return int(self.model(input_ids=torch.tensor([[token]]), **options).logits[0, -1].argmax())

    def encode(self, picture: Picture) -> Tensor:
        """Vision rows [N, hidden] of MiniCPM-V."""
        side = self.model.config.vision_config.patch_size
        patches = torch.from_numpy(picture.pixels).view(-1, 3, side, side)
        packed = patches.permute(1, 2, 0, 3).reshape(1, 3, side, -1)
        sizes = torch.tensor([grid[1:] for grid in picture.grids])
        return torch.cat(self.model.get_image_features(packed, sizes).pooler_output)
