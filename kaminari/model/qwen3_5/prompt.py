"""Qwen3.5's prompt side: what Qwen's families share, with Qwen3.5's config and positions."""

from __future__ import annotations

from transformers import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from kaminari.model.calls import CallFormat
from kaminari.model.qwen_prompt import PositionRules, QwenPromptFormat
from kaminari.model.xml_calls import XmlCallFormat


class Qwen35PositionRules(PositionRules):
    get_rope_index = Qwen3_5Model.get_rope_index
    get_vision_position_ids = Qwen3_5Model.get_vision_position_ids


class Qwen35PromptFormat(QwenPromptFormat):
    """`kaminari.model.family.PromptFormat` for Qwen3.5 checkpoints."""

    call_format: CallFormat | None = XmlCallFormat()
    config_class = Qwen3_5Config
    rules_class = Qwen35PositionRules
