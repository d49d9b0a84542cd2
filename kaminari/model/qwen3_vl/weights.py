"""Qwen3-VL's modules on the meta device, and where each tensor of a checkpoint goes in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding, Qwen3VLVisionModel

from kaminari.model.family import CheckpointError
from kaminari.model.loading import Placement, StoredTensor, check_tensors, read_headers
from kaminari.model.qwen3_vl.config import CheckpointConfig, TextSizes, load_config
from kaminari.model.qwen3_vl.text import TextDecoder
from kaminari.model.qwen_vision import build_tower, place_tower
from kaminari.model.rotary import InterleavedRotary
from kaminari.model.tied_head import EMBEDDING, HEAD, head_is_tied


class Network(nn.Module):
    """Both halves of the model. Parameters are on the meta device until they are loaded."""

    def __init__(self, config: CheckpointConfig) -> None:
        super().__init__()
        # Frequencies of every rope type are the reference's own computation.
        reference = Qwen3VLTextRotaryEmbedding(config.reference_text)
        rotary = InterleavedRotary(
            reference.inv_freq, reference.mrope_section, float(reference.attention_scaling)
        )
        with torch.device("meta"):
            self.text = TextDecoder(config.text, rotary)
        self.vision = build_tower(Qwen3VLVisionModel, config.reference_vision)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose config and headers agree, with modules that wait for their weights.

    copies:  tensors that may stand in the files a second time, and what they equal
    """

    config: CheckpointConfig
    network: Network
    tensors: dict[str, StoredTensor]
    placements: dict[str, Placement]
    copies: dict[str, str]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config and headers, and build the modules; no weight is loaded. Raises `CheckpointError`."""
    config = load_config(folder)
    tensors = read_headers(folder)
    text_flag = bool(getattr(config.reference_text, "tie_word_embeddings", False))
    tied = head_is_tied(tensors, top=config.text.tied, text=text_flag)
    config = replace(config, text=replace(config.text, tied=tied))
    try:
        network = Network(config)
    except Exception as error:  # the reference checks parts of its config only where it builds a module
        raise CheckpointError(f"{folder / 'config.json'} describes no model: {error!r}") from error
    placements = place_weights(network, config)
    copies = {HEAD: EMBEDDING} if tied else {}
    check_tensors(tensors, placements, copies=copies)
    return Checkpoint(config, network, tensors, placements, copies)


def place_weights(network: Network, config: CheckpointConfig) -> dict[str, Placement]:
    """Map every tensor name of a checkpoint to the rows of the parameter that it fills."""
    placements = {EMBEDDING: Placement("text.embedding.weight", (config.text.vocab, config.text.hidden))}
    if not config.text.tied:
        placements[HEAD] = Placement("text.own_head.weight", (config.text.vocab, config.text.hidden))
    placements["model.language_model.norm.weight"] = Placement("text.norm.weight", (config.text.hidden,))
    for number in range(config.text.layers):
        source, target = f"model.language_model.layers.{number}", f"text.layers.{number}"
        for name, placement in _layer(config.text).items():
            placements[f"{source}.{name}"] = replace(placement, parameter=f"{target}.{placement.parameter}")
    return placements | place_tower(network.vision, "model.visual", "vision")


def _layer(sizes: TextSizes) -> dict[str, Placement]:
    """Placements within one layer, by the names that the checkpoint and the decoder use inside a layer."""
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    hidden, intermediate = sizes.hidden, sizes.intermediate
    return {
        "input_layernorm.weight": Placement("attention_norm.weight", (hidden,)),
        "self_attn.q_proj.weight": Placement("attention.qkv.weight", (q_rows, hidden)),
        "self_attn.k_proj.weight": Placement("attention.qkv.weight", (kv_rows, hidden), q_rows),
        "self_attn.v_proj.weight": Placement("attention.qkv.weight", (kv_rows, hidden), q_rows + kv_rows),
        "self_attn.q_norm.weight": Placement("attention.q_norm.weight", (sizes.head_dim,)),
        "self_attn.k_norm.weight": Placement("attention.k_norm.weight", (sizes.head_dim,)),
        "self_attn.o_proj.weight": Placement("attention.output.weight", (hidden, q_rows)),
        "post_attention_layernorm.weight": Placement("mlp_norm.weight", (hidden,)),
        "mlp.gate_proj.weight": Placement("mlp.gate_up.weight", (intermediate, hidden)),
        "mlp.up_proj.weight": Placement("mlp.gate_up.weight", (intermediate, hidden), intermediate),
        "mlp.down_proj.weight": Placement("mlp.down.weight", (hidden, intermediate)),
    }
