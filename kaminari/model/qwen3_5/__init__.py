"""The Qwen3.5 family: the hybrid text decoder and the vision tower of `transformers`."""

from kaminari.model.qwen3_5.family import FAMILY

__all__ = ["FAMILY"]
