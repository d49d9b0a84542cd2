"""The hybrid text decoder: gated-delta-net layers with an attention layer every few.

One forward serves prefill chunks, decode steps and draft checks alike, and their mixtures.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from kaminari.model.attention import attend
from kaminari.model.batch import StepBatch
from kaminari.model.cache import AttentionKV, LayerState, SlotCache
from kaminari.model.compiled_layers import PartedLayer
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.hybrid.config import HybridSizes
from kaminari.model.hybrid.delta_net import GatedDeltaNet
from kaminari.model.layers import Embedding, SwiGLU, ZeroCentredRMSNorm
from kaminari.model.linear import Linear
from kaminari.model.operators import add, gate
from kaminari.model.rotary import InterleavedRotary

Rotation = tuple[Tensor, Tensor]


class GatedAttention(nn.Module):
    """Self-attention with a sigmoid gate on its output.

    `qkv` holds the rows of q (for each head its query, then its gate), then k, then v.
    """

    def __init__(self, sizes: HybridSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.kv_heads = sizes.kv_heads
        self.head_dim = sizes.head_dim
        self.qkv = Linear(sizes.hidden, 2 * (sizes.heads + sizes.kv_heads) * sizes.head_dim)
        self.q_norm = ZeroCentredRMSNorm(sizes.head_dim, sizes.norm_eps)
        self.k_norm = ZeroCentredRMSNorm(sizes.head_dim, sizes.norm_eps)
        self.output = Linear(sizes.heads * sizes.head_dim, sizes.hidden)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[T, hidden] -> q and gates [T, heads, head_dim], k and v [T, kv_heads, head_dim]; q, k turned."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        queries, k, v = heads.split_with_sizes((2 * self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, gates = queries[:, 0::2], queries[:, 1::2]
        return self.q_norm.turned(q, cos, sin), gates, self.k_norm.turned(k, cos, sin), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
        """-> [T, heads, head_dim], not yet gated; see `kaminari.model.attention.attend`."""
        return attend(q, k, v, layer, batch)


class HybridLayer(PartedLayer):
    """A mixer of either kind and SwiGLU, each behind a norm and added to its input."""

    def __init__(self, sizes: HybridSizes, attends: bool) -> None:
        super().__init__()
        self.mixer_norm = ZeroCentredRMSNorm(sizes.hidden, sizes.norm_eps)
        self.mixer = GatedAttention(sizes) if attends else GatedDeltaNet(sizes)
        self.mlp_norm = ZeroCentredRMSNorm(sizes.hidden, sizes.norm_eps)
        self.mlp = SwiGLU(sizes.hidden, sizes.intermediate)

    def forward(self, hidden: Tensor, rotation: Rotation, state: LayerState, batch: StepBatch) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        if isinstance(self.mixer, GatedAttention):
            q, gates, k, v = self.run(HybridLayer.enter_attention, hidden, *rotation)
            attended = self.mixer.attend(q, k, v, cast(AttentionKV, state), batch)
            return self.run(HybridLayer.leave_attention, hidden, attended, gates)
        projected = self.run(HybridLayer.enter_delta, hidden)
        mixed = self.mixer.recur(projected, cast(GatedDeltaState, state), batch)
        return self.run(HybridLayer.leave_delta, hidden, mixed)

    def enter_attention(
        self, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[T, hidden] -> q, gates, k and v as `GatedAttention.project` has them."""
        return cast(GatedAttention, self.mixer).project(self.mixer_norm(hidden), cos, sin)

    def leave_attention(self, hidden: Tensor, attended: Tensor, gates: Tensor) -> Tensor:
        """The layer's input [T, hidden], answers and gates [T, heads, head_dim] -> [T, hidden]."""
        return self.leave_delta(hidden, gate(attended, gates).view(hidden.shape[0], -1))

    def enter_delta(self, hidden: Tensor) -> Tensor:
        """[T, hidden] -> [T, rows of `GatedDeltaNet.input`]."""
        projected: Tensor = cast(GatedDeltaNet, self.mixer).input(self.mixer_norm(hidden))
        return projected

    def leave_delta(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The layer's input [T, hidden] and the mixer's answer before its last linear -> [T, hidden]."""
        hidden, normed = self.mlp_norm.behind(hidden, self.mixer.output(mixed))
        return add(hidden, self.mlp(normed))


class HybridDecoder(nn.Module):
    """Tokens and vision rows in, final hidden states out; and the head over chosen rows."""

    def __init__(self, sizes: HybridSizes, rotary: InterleavedRotary) -> None:
        super().__init__()
        self.embedding = Embedding(sizes.vocab, sizes.hidden)
        self.rotary = rotary
        self.layers = nn.ModuleList(HybridLayer(sizes, attends) for attends in sizes.attends)
        self.norm = ZeroCentredRMSNorm(sizes.hidden, sizes.norm_eps)
        self.own_head = None if sizes.tied else Linear(sizes.hidden, sizes.vocab)

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Write the step into the cache and return the normed final hidden states [T, hidden].

        Vision rows replace the embeddings of their placeholders.
        """
        hidden = self.embedding(batch.tokens)
        if batch.features is not None:
            hidden = hidden.index_copy(0, batch.features.index, batch.features.embeddings)
        rotation = self.rotary(batch.positions, hidden.dtype)
        for layer, state in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, rotation, state, batch)
        output: Tensor = self.norm(hidden)
        return output

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] of hidden states [rows, hidden]."""
        if self.own_head is None:
            return self.embedding.logits(hidden)
        logits: Tensor = self.own_head(hidden)
        return logits
