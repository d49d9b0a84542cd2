"""The hybrid decoder on the meta device, and where each tensor of a checkpoint goes in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from kaminari.model.family import CheckpointError
from kaminari.model.hybrid.config import HybridSizes
from kaminari.model.hybrid.text import HybridDecoder
from kaminari.model.loading import Placement, StoredTensor, check_tensors, read_headers
from kaminari.model.rotary import InterleavedRotary
from kaminari.model.tied_head import EMBEDDING, HEAD, head_is_tied

TEXT = "model.language_model"
# Multi-token prediction: the reference ignores these weights on load, and so do we.
IGNORED = "mtp."


class HybridNetwork(nn.Module):
    """Both halves of a model. Parameters are on the meta device until they are loaded."""

    def __init__(self, text: HybridDecoder, vision: nn.Module) -> None:
        super().__init__()
        self.text = text
        self.vision = vision


@dataclass(frozen=True, slots=True)
class HybridCheckpoint:
    """A folder whose config and headers agree, with modules that wait for their weights.

    copies:  tensors that may stand in the files a second time, and what they equal
    """

    sizes: HybridSizes
    network: HybridNetwork
    tensors: dict[str, StoredTensor]
    placements: dict[str, Placement]
    copies: dict[str, str]


def open_checkpoint(
    folder: Path,
    config: Any,
    sizes: HybridSizes,
    build_vision: Callable[[], tuple[nn.Module, Mapping[str, Placement]]],
) -> HybridCheckpoint:
    """Read the headers and build the modules; no weight is loaded. Raises `CheckpointError`.

    build_vision:  returns the vision half and the places of its tensors, as parameters under `vision.`
    """
    tensors = {name: stored for name, stored in read_headers(folder).items() if not name.startswith(IGNORED)}
    text_flag = bool(getattr(config.text_config, "tie_word_embeddings", False))
    tied = head_is_tied(tensors, top=sizes.tied, text=text_flag)
    sizes = replace(sizes, tied=tied)
    try:
        vision, places = build_vision()
        # Frequencies are the reference's own computation.
        reference = Qwen3_5TextRotaryEmbedding(config.text_config)
        rotary = InterleavedRotary(
            reference.inv_freq, reference.mrope_section, float(reference.attention_scaling)
        )
        with torch.device("meta"):
            text = HybridDecoder(sizes, rotary)
    except Exception as error:  # the reference checks parts of its config only where it builds a module
        raise CheckpointError(f"{folder / 'config.json'} describes no model: {error!r}") from error
    placements = place_text(sizes) | dict(places)
    copies = {HEAD: EMBEDDING} if tied else {}
    check_tensors(tensors, placements, copies=copies)
    return HybridCheckpoint(sizes, HybridNetwork(text, vision), tensors, placements, copies)


def place_text(sizes: HybridSizes) -> dict[str, Placement]:
    """Map every tensor name of the text decoder to the rows of the parameter that it fills."""
    placements = {EMBEDDING: Placement("text.embedding.weight", (sizes.vocab, sizes.hidden))}
    if not sizes.tied:
        placements[HEAD] = Placement("text.own_head.weight", (sizes.vocab, sizes.hidden))
    placements[f"{TEXT}.norm.weight"] = Placement("text.norm.weight", (sizes.hidden,))
    for number, attends in enumerate(sizes.attends):
        mixer = _attention(sizes) if attends else _delta_net(sizes)
        for name, placement in (mixer | _around(sizes)).items():
            placements[f"{TEXT}.layers.{number}.{name}"] = replace(
                placement, parameter=f"text.layers.{number}.{placement.parameter}"
            )
    return placements


def _around(sizes: HybridSizes) -> dict[str, Placement]:
    hidden, intermediate = sizes.hidden, sizes.intermediate
    return {
        "input_layernorm.weight": Placement("mixer_norm.weight", (hidden,)),
        "post_attention_layernorm.weight": Placement("mlp_norm.weight", (hidden,)),
        "mlp.gate_proj.weight": Placement("mlp.gate_up.weight", (intermediate, hidden)),
        "mlp.up_proj.weight": Placement("mlp.gate_up.weight", (intermediate, hidden), intermediate),
        "mlp.down_proj.weight": Placement("mlp.down.weight", (hidden, intermediate)),
    }


def _attention(sizes: HybridSizes) -> dict[str, Placement]:
    hidden, head_dim = sizes.hidden, sizes.head_dim
    q_rows, kv_rows = 2 * sizes.heads * head_dim, sizes.kv_heads * head_dim
    return {
        "self_attn.q_proj.weight": Placement("mixer.qkv.weight", (q_rows, hidden)),
        "self_attn.k_proj.weight": Placement("mixer.qkv.weight", (kv_rows, hidden), q_rows),
        "self_attn.v_proj.weight": Placement("mixer.qkv.weight", (kv_rows, hidden), q_rows + kv_rows),
        "self_attn.q_norm.weight": Placement("mixer.q_norm.weight", (head_dim,)),
        "self_attn.k_norm.weight": Placement("mixer.k_norm.weight", (head_dim,)),
        "self_attn.o_proj.weight": Placement("mixer.output.weight", (hidden, sizes.heads * head_dim)),
    }


def _delta_net(sizes: HybridSizes) -> dict[str, Placement]:
    hidden, delta = sizes.hidden, sizes.delta
    values = delta.heads * delta.value_dim
    placements = {}
    first_row = 0
    for name, rows in (("qkv", delta.channels), ("z", values), ("b", delta.heads), ("a", delta.heads)):
        # beta and decay are a few rows that steer the state for the rest of the prompt
        placements[f"linear_attn.in_proj_{name}.weight"] = Placement(
            "mixer.input.weight", (rows, hidden), first_row, precise=name in ("b", "a")
        )
        first_row += rows
    return placements | {
        "linear_attn.conv1d.weight": Placement("mixer.convolution", (delta.channels, 1, delta.kernel)),
        "linear_attn.A_log": Placement("mixer.decay_log", (delta.heads,)),
        "linear_attn.dt_bias": Placement("mixer.time_bias", (delta.heads,)),
        "linear_attn.norm.weight": Placement("mixer.norm", (delta.value_dim,)),
        "linear_attn.out_proj.weight": Placement("mixer.output.weight", (hidden, values)),
    }
