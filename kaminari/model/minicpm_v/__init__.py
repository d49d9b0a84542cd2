"""The MiniCPM-V 4.6 family: the hybrid text decoder and the sliced SigLIP2 tower of `transformers`."""

from kaminari.model.minicpm_v.family import FAMILY

__all__ = ["FAMILY"]
