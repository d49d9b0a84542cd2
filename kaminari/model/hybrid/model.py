"""A model with the hybrid decoder on a device: what the engine's thread calls, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kaminari.model.batch import StepBatch
from kaminari.model.cache import AttentionKV, LayerState, SlotCache
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.family import Footprint, LoadOptions, VisionLanguageModel, VisionRows
from kaminari.model.hybrid.config import HybridSizes
from kaminari.model.hybrid.weights import HybridCheckpoint, HybridNetwork
from kaminari.model.network import load_network
from kaminari.model.picture import Picture
from kaminari.model.row_attention import HeadSizes

Encode = Callable[[nn.Module, Tensor, Picture, torch.dtype], VisionRows]


class HybridModel(VisionLanguageModel):
    """`VisionLanguageModel` over loaded weights.

    encode:  runs the family's vision half: (module, pixels on the device, picture, dtype of the rows)
    """

    def __init__(
        self,
        network: HybridNetwork,
        sizes: HybridSizes,
        encode: Encode,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.vocab_size = sizes.vocab
        self.network = network
        self._sizes = sizes
        self._encode = encode

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Allocate every layer's state. Raises ValueError below 1 slot of 1 token."""
        sizes, delta = self._sizes, self._sizes.delta
        self.network.text.rotary.tabulate(capacity, self.dtype)

        def layer(attends: bool) -> LayerState:
            if attends:
                return AttentionKV(
                    slots, sizes.kv_heads, capacity, sizes.head_dim, device=self.device, dtype=self.dtype
                )
            return GatedDeltaState(
                slots,
                delta.heads,
                delta.key_dim,
                delta.value_dim,
                channels=delta.channels,
                kernel=delta.kernel,
                device=self.device,
                dtype=self.dtype,
            )

        return SlotCache([layer(attends) for attends in sizes.attends], slots, capacity)

    def encode_picture(self, picture: Picture) -> VisionRows:
        """Vision rows in the decoder's dtype, computed in the tower's own."""
        pixels = torch.tensor(picture.pixels).to(self.device)
        return self._encode(self.network.vision, pixels, picture, self.dtype)

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Write the step into the cache and return normed hidden states [T, hidden].

        Raises ValueError, before anything is written, where the rows do not fit or continue their slots.
        """
        cache.check_rows(batch.host)
        hidden: Tensor = self.network.text(batch, cache)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        return self.network.text.head(hidden)


def footprint(checkpoint: HybridCheckpoint, dtype: torch.dtype, vision_dtype: torch.dtype) -> Footprint:
    """Count the bytes of weights, of keys and values per token, and of recurrent states per slot."""
    network, sizes = checkpoint.network, checkpoint.sizes
    attention = sum(sizes.attends)
    recurrent = len(sizes.attends) - attention
    per_state = sizes.delta.state_values * 4 + sizes.delta.tail_values * dtype.itemsize
    return Footprint(
        weights=_count(network.text) * dtype.itemsize + _count(network.vision) * vision_dtype.itemsize,
        cache_per_token=2 * attention * sizes.kv_heads * sizes.head_dim * dtype.itemsize,
        cache_per_slot=recurrent * per_state,
        vocab_size=sizes.vocab,
        heads=HeadSizes(sizes.heads, sizes.kv_heads, sizes.head_dim) if attention else None,
    )


def load(checkpoint: HybridCheckpoint, encode: Encode, options: LoadOptions) -> HybridModel:
    """Load every weight onto the device, each half of the model in its dtype. Raises `CheckpointError`."""
    network = checkpoint.network
    load_network(checkpoint, network.text, network.vision, options)
    return HybridModel(network, checkpoint.sizes, encode, options.device, options.dtype)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
