"""What a `qwen3_5_text` config says, checked: sizes as data. What the decoder cannot honour is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaminari.model.family import CheckpointError, read_config

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Sizes of a gated-delta-net layer. `heads` are value heads, a multiple of `key_heads`."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def state_values(self) -> int:
        """Float32 values of one slot's state."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def tail_values(self) -> int:
        """Values of one slot's convolution tail, in the decoder's dtype."""
        return (self.kernel - 1) * self.channels


@dataclass(frozen=True, slots=True)
class HybridSizes:
    """Sizes of the text decoder.

    attends:  for each layer, whether it is an attention layer (or else a gated delta net)
    tied:     the head is the embedding
    """

    vocab: int
    hidden: int
    intermediate: int
    attends: tuple[bool, ...]
    heads: int
    kv_heads: int
    head_dim: int
    delta: DeltaSizes
    norm_eps: float
    tied: bool


def read_reference_config(folder: Path, config_class: Any) -> Any:
    """Parse `config.json` with the reference's class. Raises `CheckpointError`."""
    raw = read_config(folder)
    path = folder / "config.json"
    for key in ("text_config", "vision_config"):
        if not isinstance(raw.get(key), dict):
            raise CheckpointError(f"{path} lacks {key}")
    if raw.get("quantization_config") is not None:
        raise CheckpointError(f"{path}: quantized checkpoints (quantization_config) are not supported")
    try:
        return config_class.from_dict(raw)
    except Exception as error:  # the reference's validators raise classes of several libraries
        raise CheckpointError(f"{path} is not a valid config: {' '.join(str(error).split())}") from error


def hybrid_sizes(config: Any, path: Path) -> HybridSizes:
    """Check and return the sizes of a config's text decoder. Raises `CheckpointError`."""
    text = config.text_config
    problem = _problem(text)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    return HybridSizes(
        vocab=text.vocab_size,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        attends=tuple(kind == FULL for kind in text.layer_types),
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        delta=DeltaSizes(
            key_heads=text.linear_num_key_heads,
            heads=text.linear_num_value_heads,
            key_dim=text.linear_key_head_dim,
            value_dim=text.linear_value_head_dim,
            kernel=text.linear_conv_kernel_dim,
        ),
        norm_eps=text.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
    )


def _problem(text: Any) -> str | None:
    """Say what this decoder cannot honour, or None."""
    if text.model_type != "qwen3_5_text":
        return f"text_config.model_type {text.model_type!r} is not supported (only 'qwen3_5_text')"
    sizes: Mapping[str, int] = {
        key: getattr(text, key)
        for key in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
        )
    }
    for key, size in sizes.items():
        if size < 1:
            return f"text_config.{key} is {size}"
    if text.num_attention_heads % text.num_key_value_heads:
        return f"{text.num_attention_heads} heads cannot share {text.num_key_value_heads} key-value heads"
    if text.linear_num_value_heads % text.linear_num_key_heads:
        return f"{text.linear_num_value_heads} value heads cannot share {text.linear_num_key_heads} key heads"
    if len(text.layer_types) != text.num_hidden_layers or not set(text.layer_types) <= {FULL, LINEAR}:
        return f"text_config.layer_types must name {text.num_hidden_layers} layers of {FULL} or {LINEAR}"
    turned = text.head_dim * text.rope_parameters.get("partial_rotary_factor", 1.0)
    if int(turned) < 2 or int(turned) % 2:
        return f"rotary turns {turned:g} channels of a head, which must be an even number"
    if text.rope_parameters["rope_type"] != "default":
        return f"rope type {text.rope_parameters['rope_type']!r} is not supported (only 'default')"
    if text.attention_bias:
        return "text_config.attention_bias is not supported"
    if text.hidden_act != "silu":
        return f"text_config.hidden_act {text.hidden_act!r} is not supported (only 'silu')"
    return None
