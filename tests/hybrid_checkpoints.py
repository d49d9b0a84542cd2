"""Tiny random checkpoints of the families with the hybrid decoder, built as in `tests.checkpoints`.

The weights are wide, as there; the decays are slow enough that a state remembers a whole prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (
    MiniCPMV4_6Config,
    MiniCPMV4_6ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from tests.checkpoints import (
    MERGE_SIZE,
    PATCH_SIZE,
    VOCAB_SIZE,
    build_tokenizer,
    preprocessor,
    save_tokenizer,
    widen,
    write_json,
)


@dataclass(frozen=True, slots=True)
class HybridShape:
    """What differs between the variants. Layers are gated delta nets but for every `period`-th."""

    tied: bool
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    key_dim: int = 16
    value_dim: int = 16
    layers: int = 4
    period: int = 4
    hidden: int = 64
    kernel: int = 4


QWEN3_5_VARIANTS = {
    "qwen3_5": HybridShape(True, heads=2, kv_heads=1, key_heads=2, value_heads=4),
    "qwen3_5-untied": HybridShape(
        False, heads=4, kv_heads=2, key_heads=2, value_heads=2, value_dim=24, layers=5, period=2, kernel=3
    ),
}


@dataclass(frozen=True, slots=True)
class SlicedShape:
    """What differs between MiniCPM-V's variants: how pictures are cut, and the decoder.

    position_side:  of the square position table; 70 in the released checkpoint
    """

    text: HybridShape
    resolution: int = 112
    max_slices: int = 4
    position_side: int = 16
    downsample_mode: str = "16x"


SLICED_TEXT = HybridShape(True, heads=2, kv_heads=1, key_heads=2, value_heads=2)
MINICPM_V_VARIANTS = {
    "minicpm_v": SlicedShape(SLICED_TEXT),
    "minicpm_v-4x": SlicedShape(SLICED_TEXT, downsample_mode="4x"),
    "minicpm_v-released-sizes": SlicedShape(
        HybridShape(False, heads=2, kv_heads=2, key_heads=2, value_heads=2),
        resolution=448,
        max_slices=9,
        position_side=70,
    ),
}
PICTURE_TAGS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
SLICED_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *PICTURE_TAGS.values())
QWEN3_5_CHAT_TEMPLATE = Path(__file__).parent / "assets" / "qwen3_5_chat_template.jinja"
SLICED_CHAT_TEMPLATE = Path(__file__).parent / "assets" / "minicpm_v_chat_template.jinja"
SLICED_PATCH_SIZE = 14


def build_hybrid(folder: Path, variant: str) -> Path:
    """Write the checkpoint of a variant of either family."""
    return (build_qwen3_5 if variant in QWEN3_5_VARIANTS else build_minicpm_v)(folder, variant)


def build_minicpm_v(folder: Path, variant: str = "minicpm_v", *, seed: int = 0) -> Path:
    """Write a whole checkpoint (weights float32, tokenizer, template, processor) and return its folder."""
    shape = MINICPM_V_VARIANTS[variant]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(SLICED_SPECIAL_TOKENS)
    save_tokenizer(tokenizer, folder, SLICED_SPECIAL_TOKENS, PICTURE_TAGS)
    (folder / "chat_template.jinja").write_text(
        SLICED_CHAT_TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8"
    )
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "MiniCPMV4_6ImageProcessor",
            "processor_class": "MiniCPMV4_6Processor",
            "patch_size": SLICED_PATCH_SIZE,
            "scale_resolution": shape.resolution,
            "max_slice_nums": shape.max_slices,
            "downsample_mode": shape.downsample_mode,
        },
    )
    config = MiniCPMV4_6Config(
        text_config=text_config(shape.text, {}),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": shape.position_side * SLICED_PATCH_SIZE,
            "patch_size": SLICED_PATCH_SIZE,
        },
        insert_layer_id=1,
        downsample_mode=shape.downsample_mode,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        tie_word_embeddings=shape.text.tied,
    )
    with torch.random.fork_rng(devices=[]):
        model = MiniCPMV4_6ForConditionalGeneration(config).eval()
    save_model(model, folder, tokenizer, seed)
    return folder


def build_qwen3_5(folder: Path, variant: str = "qwen3_5", *, seed: int = 0) -> Path:
    """Write a whole checkpoint (weights float32, tokenizer, template, processor) and return its folder."""
    shape = QWEN3_5_VARIANTS[variant]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    save_tokenizer(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(
        QWEN3_5_CHAT_TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8"
    )
    write_json(folder / "preprocessor_config.json", preprocessor())
    rope = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = Qwen3_5Config(
        text_config=text_config(shape, rope),
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": 16**2,
        },
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        tie_word_embeddings=shape.tied,
    )
    with torch.random.fork_rng(devices=[]):
        model = Qwen3_5ForConditionalGeneration(config).eval()
    save_model(model, folder, tokenizer, seed)
    return folder


def text_config(shape: HybridShape, rope: dict[str, object]) -> dict[str, object]:
    """A `qwen3_5_text` config; rotary turns a quarter of each head."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden,
        "intermediate_size": 128,
        "num_hidden_layers": shape.layers,
        "full_attention_interval": shape.period,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": 32,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.key_dim,
        "linear_value_head_dim": shape.value_dim,
        "linear_conv_kernel_dim": shape.kernel,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            **rope,
        },
    }


def save_model(model: torch.nn.Module, folder: Path, tokenizer: Tokenizer, seed: int) -> None:
    """Spread a model's weights and save it with both end tokens."""
    _spread(model, seed)
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[1]
    model.save_pretrained(folder)


def _spread(model: torch.nn.Module, seed: int) -> None:
    """Draw every weight anew, as `widen_hybrid` scales it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(widen_hybrid(name, torch.empty(weight.shape).normal_(generator=generator)))


def widen_hybrid(name: str, noise: torch.Tensor) -> torch.Tensor:
    """As `tests.checkpoints.widen`. Norms of the text decoder scale by 1 + weight, but for the gated norm of
    a delta net."""
    text = "language_model" in name
    if name.endswith("A_log"):
        return noise - 3.0
    if name.endswith("dt_bias"):
        return 0.5 * noise
    if "linear_attn.out_proj" in name:
        return 3.0 / math.sqrt(noise[0].numel()) * noise
    if text and "norm" in name and "linear_attn" not in name:
        return (1.0 if "q_norm" in name else 0.0) + 0.2 * noise
    if "q_norm" in name:
        return 1.0 + 0.2 * noise
    return widen(name, noise)
