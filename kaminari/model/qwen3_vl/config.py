"""What Qwen3-VL's `config.json` says, checked: sizes as data, and the reference's own config objects.

Defaults of keys that are absent are the reference's. What the decoder cannot honour is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen3VLConfig

from kaminari.model.family import CheckpointError, read_config

# These take other frequencies as a prompt grows, so cached keys would no longer fit.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True)
class TextSizes:
    """Sizes of the text decoder. `tied`: the head is the embedding."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """A checked config: our decoder's sizes, and the reference's text and vision configs."""

    text: TextSizes
    reference_text: Any
    reference_vision: Any


def load_config(folder: Path) -> CheckpointConfig:
    """Read and check `config.json`. Raises `CheckpointError`."""
    raw = read_config(folder)
    path = folder / "config.json"
    for key in ("text_config", "vision_config"):
        if not isinstance(raw.get(key), dict):
            raise CheckpointError(f"{path} lacks {key}")
    try:
        config = Qwen3VLConfig.from_dict(raw)
    except Exception as error:  # the reference's validators raise classes of several libraries
        raise CheckpointError(f"{path} is not a valid config: {' '.join(str(error).split())}") from error
    problem = _problem(raw, config)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    text = config.text_config
    sizes = TextSizes(
        vocab=text.vocab_size,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        norm_eps=text.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
    )
    return CheckpointConfig(sizes, text, config.vision_config)


def _problem(raw: dict[str, Any], config: Any) -> str | None:
    """Say what this decoder cannot honour, or None."""
    text, vision = config.text_config, config.vision_config
    if raw.get("quantization_config") is not None:
        return "quantized checkpoints (quantization_config) are not supported"
    sizes = {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.num_hidden_layers,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": text.head_dim,
    }
    for key, size in sizes.items():
        if size < 1:
            return f"text_config.{key} is {size}"
    if text.num_attention_heads % text.num_key_value_heads:
        return f"{text.num_attention_heads} heads cannot share {text.num_key_value_heads} key-value heads"
    if text.head_dim % 2:
        return f"text_config.head_dim is {text.head_dim}, and rotary needs an even one"
    if text.attention_bias:
        return "text_config.attention_bias is not supported"
    if text.hidden_act != "silu":
        return f"text_config.hidden_act {text.hidden_act!r} is not supported (only 'silu')"
    rope_type = text.rope_parameters["rope_type"]
    if rope_type in LENGTH_DEPENDENT_ROPE:
        return f"rope type {rope_type!r} is not supported: its frequencies depend on the prompt's length"
    heads = vision.num_heads
    # Rotary gives a quarter of a head's channels to each axis, sines and cosines apart.
    if heads < 1 or vision.hidden_size % (4 * heads):
        return (
            f"vision_config.hidden_size {vision.hidden_size} does not split into {heads} heads "
            "of a multiple of 4 channels"
        )
    if vision.out_hidden_size != text.hidden_size:
        return (
            f"vision_config.out_hidden_size is {vision.out_hidden_size} and text_config.hidden_size is "
            f"{text.hidden_size}; they must be equal"
        )
    return None
