"""Qwen3-VL's prompt side: what Qwen's families share, with Qwen3-VL's config and positions."""

from __future__ import annotations

from transformers import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from kaminari.model.calls import CallFormat
from kaminari.model.qwen3_vl.calls import HermesCallFormat
from kaminari.model.qwen_prompt import PositionRules, QwenPromptFormat


class Qwen3VLPositionRules(PositionRules):
    get_rope_index = Qwen3VLModel.get_rope_index
    get_vision_position_ids = Qwen3VLModel.get_vision_position_ids


class Qwen3VLPromptFormat(QwenPromptFormat):
    """`kaminari.model.family.PromptFormat` for Qwen3-VL checkpoints."""

    call_format: CallFormat | None = HermesCallFormat()
    config_class = Qwen3VLConfig
    rules_class = Qwen3VLPositionRules
