"""The Qwen3-VL family: a native text decoder and the vision tower of `transformers`."""

from kaminari.model.qwen3_vl.family import FAMILY

__all__ = ["FAMILY"]
