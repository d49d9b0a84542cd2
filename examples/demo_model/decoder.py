"""Qwen3-VL's text decoder for training: padded sequences as a batch, parameters by the checkpoint's names.

It computes what the decoder of `transformers` computes. Padding stands at the end, where causal attention
from within a sequence never reaches it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.demo_model.tower import Sight
from kaminari.model.rotary import InterleavedRotary, rotate

# the attention that is guided: its layer, and its query heads
GUIDED_LAYER = 1
GUIDED_HEADS = (0, 2, 4)


class Guide(NamedTuple):
    """Tokens that come before a character of a picture's text.

    row, column:  [G] where each token is in the batch
    cell:         [G] which of the picture's N rows holds the character
    """

    row: Tensor
    column: Tensor
    cell: Tensor


class Decoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        rope = config.rope_parameters
        frequencies = 1 / rope["rope_theta"] ** (
            torch.arange(0, config.head_dim, 2).float() / config.head_dim
        )
        self.rotary = InterleavedRotary(frequencies, rope["mrope_section"])

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        places: Tensor | None = None,
        sight: Sight | None = None,
        guide: Guide | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return final hidden states [B, L, hidden], and scores of the guided heads [heads, G, N] if guided.

        tokens:     [B, L]
        positions:  [3, B, L] temporal, height and width
        places:     [B, N] columns of the pictures' tokens, of which every sequence has as many
        """
        batch, length = tokens.shape
        states = self.embed_tokens(tokens)
        if sight is not None and places is not None:
            spread = places[..., None].expand(-1, -1, states.shape[-1])
            states = states.scatter(1, spread, sight.rows)
        turns = (part.view(batch, 1, length, -1) for part in self.rotary(positions.flatten(1), states.dtype))
        cos, sin = turns
        scores = None
        for number, layer in enumerate(self.layers):
            query, key, value = layer.project(states, cos, sin)
            if guide is not None and places is not None and number == GUIDED_LAYER:
                scores = _guided_scores(query, key, places, guide)
            states = layer.mix(states, query, key, value)
            if sight is not None and number < len(sight.deepstack):
                states = states.scatter_add(1, spread, sight.deepstack[number])
        return self.norm(states), scores

    def logits(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocabulary], by the tied embedding."""
        return F.linear(states, self.embed_tokens.weight).float()


def _guided_scores(query: Tensor, key: Tensor, places: Tensor, guide: Guide) -> Tensor:
    """Attention logits of query [B, heads, L, head_dim] onto keys [B, kv_heads, L, head_dim]."""
    per_key, head_dim = query.shape[1] // key.shape[1], query.shape[-1]
    spread = places[..., None].expand(-1, -1, head_dim)
    scores = []
    for head in GUIDED_HEADS:
        asking = query[guide.row, head, guide.column].float()
        seen = key[:, head // per_key].float().gather(1, spread)
        scores.append(torch.einsum("gd,gnd->gn", asking, seen[guide.row]) * head_dim**-0.5)
    return torch.stack(scores)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = _MLP(config)

    def project(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, L, head_dim], keys and values [B, kv_heads, L, head_dim]."""
        return self.self_attn.project(self.input_layernorm(states), cos, sin)

    def mix(self, states: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend, then the MLP, each added: [B, L, hidden]."""
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        states = states + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return states + self.mlp(self.post_attention_layernorm(states))


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def project(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            projection(states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = rotate(self.q_norm(query.float()), cos, sin).to(value.dtype)
        return query, rotate(self.k_norm(key.float()), cos, sin).to(value.dtype), value


class _MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
