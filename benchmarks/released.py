"""Sizes of released models, as configs of `transformers`: what `benchmarks.make_checkpoint` fills with noise.

The number of parameters of each is the released checkpoint's (without the multi-token prediction that
`transformers` leaves out). Nothing is downloaded, and no released weight is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    MiniCPMV4_6Config,
    MiniCPMV4_6ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tests.checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, widen
from tests.hybrid_checkpoints import (
    PICTURE_TAGS,
    SLICED_CHAT_TEMPLATE,
    SLICED_SPECIAL_TOKENS,
    widen_hybrid,
)

CONTEXT = 262144


@dataclass(frozen=True, slots=True)
class Released:
    """A released model.

    model:         its class in `transformers`
    config:        makes its config, given the id of each special token's spelling
    vocab:         tokens, each of which the stand-in tokenizer can spell
    special:       spellings of its special tokens; `named`: those that its tokenizer has attributes for
    preprocessor:  content of preprocessor_config.json
    widen:         scales a parameter's noise, by its name
    """

    model: Any
    config: Callable[[Mapping[str, int]], Any]
    vocab: int
    special: tuple[str, ...]
    named: Mapping[str, str]
    template: Path
    preprocessor: Mapping[str, Any]
    widen: Callable[[str, Tensor], Tensor]


def _qwen3_vl_2b(ids: Mapping[str, int]) -> Qwen3VLConfig:
    return Qwen3VLConfig(
        text_config={
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 2048,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        tie_word_embeddings=True,
        **_qwen_ids(ids),
    )


def _qwen3_5_08b(ids: Mapping[str, int]) -> Qwen3_5Config:
    return Qwen3_5Config(
        text_config=_hybrid_text(248320, {"mrope_section": [11, 11, 10], "mrope_interleaved": True}),
        vision_config={
            "depth": 12,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_heads": 12,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 1024,
            "num_position_embeddings": 2304,
        },
        tie_word_embeddings=True,
        **_qwen_ids(ids),
    )


def _minicpm_v(ids: Mapping[str, int]) -> MiniCPMV4_6Config:
    return MiniCPMV4_6Config(
        text_config=_hybrid_text(248094, {}),
        vision_config={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 980,
            "patch_size": 14,
        },
        insert_layer_id=6,
        downsample_mode="16x",
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        tie_word_embeddings=True,
    )


def _hybrid_text(vocab: int, rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": vocab,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "full_attention_interval": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            **rope,
        },
    }


def _qwen_ids(ids: Mapping[str, int]) -> dict[str, int]:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


QWEN_PICTURES = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
SLICED_PICTURES = {
    "image_processor_type": "MiniCPMV4_6ImageProcessor",
    "processor_class": "MiniCPMV4_6Processor",
    "patch_size": 14,
    "scale_resolution": 448,
    "max_slice_nums": 9,
    "downsample_mode": "16x",
}
RELEASED = {
    "qwen3-vl-2b": Released(
        Qwen3VLForConditionalGeneration,
        _qwen3_vl_2b,
        151936,
        SPECIAL_TOKENS,
        {},
        CHAT_TEMPLATE,
        QWEN_PICTURES,
        widen,
    ),
    "qwen3.5-0.8b": Released(
        Qwen3_5ForConditionalGeneration,
        _qwen3_5_08b,
        248320,
        SPECIAL_TOKENS,
        {},
        CHAT_TEMPLATE,
        QWEN_PICTURES,
        widen_hybrid,
    ),
    "minicpm-v-4.6": Released(
        MiniCPMV4_6ForConditionalGeneration,
        _minicpm_v,
        248094,
        SLICED_SPECIAL_TOKENS,
        PICTURE_TAGS,
        SLICED_CHAT_TEMPLATE,
        SLICED_PICTURES,
        widen_hybrid,
    ),
}
