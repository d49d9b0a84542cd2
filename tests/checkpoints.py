"""Tiny random Qwen3-VL checkpoints with real structure, built with `transformers`; nothing is downloaded.

The weights are wide (see `spread`), so that greedy answers vary from token to token and depend on the
pictures, and the reference's top two logits are rarely closer than 1e-4. `tests.reference` runs them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ORDINARY_ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_response>",
    "</tool_response>",
)
MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("Ġ", "the"),
    ("e", "r"),
    ("a", "n"),
    ("Ġ", "a"),
    ("o", "n"),
    ("Ã", "©"),
    ("å", "¤"),
)
WORD_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB_SIZE = 320  # larger than the tokenizer, as in the released checkpoints
PATCH_SIZE, MERGE_SIZE = 16, 2
CHAT_TEMPLATE = Path(__file__).parent / "assets" / "qwen3_vl_chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between the variants."""

    tied: bool
    heads: int
    kv_heads: int
    head_dim: int
    mrope_section: tuple[int, int, int]
    layers: int = 3
    hidden: int = 64
    intermediate: int = 160
    vision_depth: int = 3
    vision_heads: int = 2
    vision_hidden: int = 64
    position_side: int = 16
    deepstack: tuple[int, ...] = (0, 1)
    max_shard_size: str = "1GB"


VARIANTS = {
    "tied-grouped": Shape(True, heads=4, kv_heads=2, head_dim=32, mrope_section=(6, 5, 5)),
    "untied-grouped": Shape(False, heads=4, kv_heads=1, head_dim=32, mrope_section=(6, 5, 5)),
    "tied-ungrouped": Shape(True, heads=4, kv_heads=4, head_dim=16, mrope_section=(4, 2, 2)),
    "untied-wide": Shape(
        False,
        heads=6,
        kv_heads=2,
        head_dim=24,
        mrope_section=(4, 4, 4),
        layers=5,
        hidden=80,
        intermediate=144,
        vision_depth=4,
        vision_heads=3,
        vision_hidden=48,
        position_side=9,
        deepstack=(0, 1, 3),
    ),
    "sharded": Shape(
        False, heads=4, kv_heads=2, head_dim=32, mrope_section=(6, 5, 5), max_shard_size="300KB"
    ),
}


def build_qwen3_vl(folder: Path, variant: str = "tied-grouped", *, seed: int = 0) -> Path:
    """Write a whole checkpoint (weights float32, tokenizer, template, processor) and return its folder.

    Raises KeyError for a variant that is not in `VARIANTS`.
    """
    shape = VARIANTS[variant]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    save_tokenizer(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    write_json(folder / "preprocessor_config.json", preprocessor())
    with torch.random.fork_rng(devices=[]):
        model = Qwen3VLForConditionalGeneration(_config(shape, tokenizer)).eval()
    spread(model, seed)
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[1]
    model.save_pretrained(folder, max_shard_size=shape.max_shard_size)
    return folder


def build_tokenizer(special: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """Return a byte-level BPE tokenizer of Qwen's form with ten merges and its added tokens."""
    vocab = {piece: index for index, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ORDINARY_ADDED_TOKENS]
    )
    return tokenizer


def save_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    special: Sequence[str] = SPECIAL_TOKENS,
    named: Mapping[str, str] | None = None,
) -> None:
    """Write tokenizer.json and tokenizer_config.json of a tokenizer that `build_tokenizer` made.

    named:  special tokens that the tokenizer has attributes for, such as `image_token`
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    added = {
        str(tokenizer.token_to_id(text)): {"content": text, "special": text in special, **flags}
        for text in (*special, *ORDINARY_ADDED_TOKENS)
    }
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": added,
            "additional_special_tokens": list(special[1:]),
            **({"extra_special_tokens": dict(named)} if named else {}),
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "unk_token": None,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
        },
    )


def preprocessor() -> dict[str, Any]:
    """The preprocessor_config.json of Qwen's tiny checkpoints."""
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": PATCH_SIZE,
        "temporal_patch_size": 2,
        "merge_size": MERGE_SIZE,
        "size": {"shortest_edge": 32 * 32, "longest_edge": 256 * 256},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def _config(shape: Shape, tokenizer: Tokenizer) -> Qwen3VLConfig:
    rope = {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": list(shape.mrope_section),
        "mrope_interleaved": True,
    }
    return Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": 4096,
            "rope_parameters": rope,
            "tie_word_embeddings": shape.tied,
        },
        vision_config={
            "depth": shape.vision_depth,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": 2 * shape.vision_hidden,
            "num_heads": shape.vision_heads,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": shape.position_side**2,
            "deepstack_visual_indexes": list(shape.deepstack),
        },
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        tie_word_embeddings=shape.tied,
    )


def spread(model: torch.nn.Module, seed: int) -> None:
    """Draw every weight anew, as `widen` scales it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(widen(name, torch.empty(weight.shape).normal_(generator=generator)))


def widen(name: str, noise: torch.Tensor) -> torch.Tensor:
    """A parameter's weight (or rows of it) of standard noise, so that greedy answers vary and depend on all
    that came before.

    Matrices get a standard deviation of gain / sqrt(fan in), with more gain where a layer writes to the
    residual stream: its layers then outweigh the last token's own embedding. A wide `q_norm` sharpens the
    attention. All norms scatter, so that one left out or applied twice shows.
    """
    if "embed" in name and noise.ndim == 2:
        return 0.3 * noise
    if noise.ndim >= 2:
        gain = 3.0 if "o_proj" in name or "down_proj" in name else 1.5
        return gain / math.sqrt(noise[0].numel()) * noise
    if "norm" in name and name.endswith("weight"):
        return (2.0 if "q_norm" in name else 1.0) * (1.0 + 0.2 * noise)
    return 0.2 * noise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
