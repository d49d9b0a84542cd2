"""Qwen3-VL on a device: what the engine's thread calls. Owns the weights, and nothing of any request."""

from __future__ import annotations

import torch
from torch import Tensor

from kaminari.model.batch import StepBatch
from kaminari.model.cache import AttentionKV, SlotCache
from kaminari.model.family import VisionLanguageModel, VisionRows
from kaminari.model.picture import Picture
from kaminari.model.qwen3_vl.config import TextSizes
from kaminari.model.qwen3_vl.weights import Network
from kaminari.model.qwen_vision import encode


class Qwen3VL(VisionLanguageModel):
    """`VisionLanguageModel` over loaded weights."""

    def __init__(self, network: Network, sizes: TextSizes, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.vocab_size = sizes.vocab
        self.network = network
        self._sizes = sizes

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Allocate keys and values of every layer. Raises ValueError below 1 slot of 1 token."""
        sizes = self._sizes
        self.network.text.rotary.tabulate(capacity, self.dtype)
        layers = [
            AttentionKV(slots, sizes.kv_heads, capacity, sizes.head_dim, device=self.device, dtype=self.dtype)
            for _ in range(sizes.layers)
        ]
        return SlotCache(layers, slots, capacity)

    def encode_picture(self, picture: Picture) -> VisionRows:
        """Vision rows in the decoder's dtype, computed in the tower's own."""
        pixels = torch.tensor(picture.pixels).to(self.device)
        return encode(self.network.vision, pixels, picture.grids, self.dtype)

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Write the step into the cache and return normed hidden states [T, hidden].

        Raises ValueError, before anything is written, where the rows do not fit the cache.
        """
        cache.check_rows(batch.host)
        hidden: Tensor = self.network.text(batch, cache)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        return self.network.text.head(hidden)
