"""Qwen3.5's stages for `kaminari verify`: those that Qwen's families share."""

from kaminari.model.qwen_stages import QwenStages

STAGES = QwenStages()
