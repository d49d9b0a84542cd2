"""Qwen3-VL's text decoder: fused projections, q and k norms per head, M-RoPE, deepstack.

One forward serves prefill chunks and decode steps alike. It never waits for the device, and no shape in it
depends on data other than the counts of tokens and rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from kaminari.model.attention import attend
from kaminari.model.batch import StepBatch
from kaminari.model.cache import AttentionKV, SlotCache
from kaminari.model.compiled_layers import PartedLayer
from kaminari.model.layers import Embedding, RMSNorm, SwiGLU
from kaminari.model.linear import Linear
from kaminari.model.operators import add
from kaminari.model.qwen3_vl.config import TextSizes
from kaminari.model.rotary import InterleavedRotary

Rotation = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Self-attention of one layer. `qkv` holds the rows of q, then k, then v."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.kv_heads = sizes.kv_heads
        self.head_dim = sizes.head_dim
        self.qkv = Linear(sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)
        self.q_norm = RMSNorm(sizes.head_dim, sizes.norm_eps)
        self.k_norm = RMSNorm(sizes.head_dim, sizes.norm_eps)
        self.output = Linear(sizes.heads * sizes.head_dim, sizes.hidden)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, hidden] -> q [T, heads, head_dim], k and v [T, kv_heads, head_dim], q and k turned."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split_with_sizes((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return self.q_norm.turned(q, cos, sin), self.k_norm.turned(k, cos, sin), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
        """What `project` returned -> [T, heads, head_dim]; see `kaminari.model.attention.attend`."""
        return attend(q, k, v, layer, batch)


class DecoderLayer(PartedLayer):
    """Attention and SwiGLU, each behind a norm and added to its input."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.attention = Attention(sizes)
        self.mlp_norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.mlp = SwiGLU(sizes.hidden, sizes.intermediate)

    def forward(self, hidden: Tensor, rotation: Rotation, layer: AttentionKV, batch: StepBatch) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        q, k, v = self.run(DecoderLayer.enter, hidden, *rotation)
        return self.run(DecoderLayer.leave, hidden, self.attention.attend(q, k, v, layer, batch))

    def enter(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, hidden] -> q, k and v as `Attention.project` has them."""
        return self.attention.project(self.attention_norm(hidden), cos, sin)

    def leave(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's input [T, hidden] and its heads' answers [T, heads, head_dim] -> [T, hidden]."""
        mixed = self.attention.output(attended.view(hidden.shape[0], -1))
        hidden, normed = self.mlp_norm.behind(hidden, mixed)
        return add(hidden, self.mlp(normed))


class TextDecoder(nn.Module):
    """Tokens and vision rows in, final hidden states out; and the head over chosen rows."""

    def __init__(self, sizes: TextSizes, rotary: InterleavedRotary) -> None:
        super().__init__()
        self.embedding = Embedding(sizes.vocab, sizes.hidden)
        self.rotary = rotary
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.own_head = None if sizes.tied else Linear(sizes.hidden, sizes.vocab)

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Write the step into the cache and return the normed final hidden states [T, hidden].

        Vision rows replace the embeddings of their placeholders, and deepstack row n is added to them
        behind layer n.
        """
        features = batch.features
        hidden = self.embedding(batch.tokens)
        if features is not None:
            hidden = hidden.index_copy(0, features.index, features.embeddings)
        rotation = self.rotary(batch.positions, hidden.dtype)
        for number, (layer, state) in enumerate(zip(self.layers, cache.layers, strict=True)):
            hidden = layer(hidden, rotation, state, batch)
            if features is not None and number < features.deepstack.shape[0]:
                hidden = hidden.index_add(0, features.index, features.deepstack[number])
        output: Tensor = self.norm(hidden)
        return output

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] of hidden states [rows, hidden]."""
        if self.own_head is None:
            return self.embedding.logits(hidden)
        logits: Tensor = self.own_head(hidden)
        return logits
