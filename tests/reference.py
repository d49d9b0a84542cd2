"""The reference: `transformers` running a checkpoint in float32, whole prompts only.

The reference's own chunked prefill sets M-RoPE positions wrongly, so goldens come from unchunked runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, GenerationConfig
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

NEAR_TIE = 1e-4
OLD_SLICES = Version(transformers.__version__) < Version("5.24")
NO_TOKEN = 2**31 - 1  # an id past every vocabulary


class _PictureProcessor(Qwen3VLProcessor):
    """The reference's processor without its video processor, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


class _SlicedPictureProcessor(MiniCPMV4_6Processor):
    """The reference's processor with no more of a video processor than it reads when it is made."""

    check_argument_for_proper_class = _PictureProcessor.check_argument_for_proper_class


_NO_VIDEO = SimpleNamespace(slice_mode=False, downsample_mode="16x", model_input_names=[])
_QWEN = (_PictureProcessor, Qwen2VLImageProcessorPil, None)
_PROCESSORS = {"minicpmv4_6": (_SlicedPictureProcessor, MiniCPMV4_6ImageProcessorPil, _NO_VIDEO)}


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference's model (float32, eval) and processor of one checkpoint folder."""

    model: Any
    processor: Any

    def render(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Return the chat template's text, with one `<|image_pad|>` per picture."""
        options = {"add_generation_prompt": True, **kwargs}
        return str(self.processor.tokenizer.apply_chat_template(messages, tokenize=False, **options))

    def inputs(self, text: str, images: Sequence[Image.Image] = ()) -> dict[str, torch.Tensor]:
        """Return what `generate` takes for a rendered prompt and its pictures, in order."""
        return dict(self.processor(text=[text], images=list(images) or None, return_tensors="pt"))


@dataclass(frozen=True, slots=True)
class Greedy:
    """A greedy answer.

    prompt_ids:  the prompt with every placeholder expanded
    token_ids:   the answer, with its end token where one came
    gaps:        top logit minus the second, for each token of the answer
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


def reference(folder: Path) -> Reference:
    """Load the reference of a checkpoint folder.

    Skips the test where the installed one cannot be trusted with slices.
    """
    if OLD_SLICES and _model_type(folder) == "minicpmv4_6":
        pytest.skip("older references take all slices of a call to be as large as the first")
    processor_class, picture_class, video_processor = _PROCESSORS.get(_model_type(folder), _QWEN)
    processor = processor_class(
        image_processor=picture_class.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        video_processor=video_processor,
        chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
    )
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return Reference(model.eval(), processor)


def _model_type(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])


def reference_greedy(
    reference: Reference,
    text: str,
    images: Sequence[Image.Image] = (),
    *,
    max_tokens: int = 16,
    ignore_eos: bool = False,
) -> Greedy:
    """Greedy answer to a rendered prompt (`Reference.render`) with one `<|image_pad|>` per picture."""
    inputs = reference.inputs(text, images)
    config = reference.model.generation_config
    with torch.inference_mode():
        output = reference.model.generate(
            **inputs,
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=max_tokens,
                eos_token_id=[NO_TOKEN] if ignore_eos else config.eos_token_id,
                pad_token_id=config.pad_token_id,
                return_dict_in_generate=True,
                output_logits=True,
            ),
        )
    prompt_length = inputs["input_ids"].shape[1]
    ids = output.sequences[0].tolist()
    tops = [logits[0].float().topk(2).values.tolist() for logits in output.logits]
    return Greedy(tuple(ids[:prompt_length]), tuple(ids[prompt_length:]), tuple(a - b for a, b in tops))


def differing_tokens(ours: Sequence[int], golden: Greedy) -> list[int]:
    """Places where an answer differs from the golden one, without what a near tie explains.

    Empty where they agree, or where they first part at a token whose top two logits are closer than 1e-4.
    """
    place = _parting(ours, golden)
    return [] if place is None or _near_tie(place, golden) else [place]


def assert_same_tokens(pairs: Iterable[tuple[Sequence[int], Greedy]]) -> None:
    """Hold answers to the golden ones, token for token.

    An answer may part from the golden one only at a near tie, and that at fewer than 0.5 % of all tokens;
    what follows such a place is another answer.
    """
    tokens = excused = 0
    for ours, golden in pairs:
        tokens += len(golden.token_ids)
        place = _parting(ours, golden)
        if place is not None:
            assert _near_tie(place, golden), f"token {place}: {tuple(ours)} is not {golden.token_ids}"
            excused += 1
    assert tokens, "nothing was compared"
    assert excused == 0 or excused < 0.005 * tokens, f"{excused} near ties among {tokens} tokens"


def _parting(ours: Sequence[int], golden: Greedy) -> int | None:
    """The first place where an answer parts from the golden one, by its token or by its end."""
    for place, (mine, theirs) in enumerate(zip(ours, golden.token_ids, strict=False)):
        if mine != theirs:
            return place
    shorter = min(len(ours), len(golden.token_ids))
    return None if len(ours) == len(golden.token_ids) else shorter


def _near_tie(place: int, golden: Greedy) -> bool:
    return place < len(golden.gaps) and golden.gaps[place] < NEAR_TIE
