"""Which weights of a checkpoint a pack holds: the projections of its decoder, and on request its head.

A head that is tied to the embedding is one table with it: with a pack that holds the head, tokens are looked
up in the head's rows. An embedding of its own, norms, convolutions, gates of a few rows (`Placement.precise`)
and the vision half keep their precision and their place in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from kaminari.config.quantization import PackFormat
from kaminari.model.linear import Linear, Matrix
from kaminari.model.loading import OpenCheckpoint, Placement

TEXT = "text."
OWN_HEAD = "text.own_head.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """One weight to be quantized: the tensor that holds it, its format, and the rows that it fills."""

    source: str
    format: PackFormat
    shape: tuple[int, int]
    parameter: str
    first_row: int = 0


def find_targets(checkpoint: OpenCheckpoint, pack_format: PackFormat, *, head: bool) -> dict[str, Target]:
    """The targets of a checkpoint by their names in a pack; a tied head has its own name there too."""
    matrices = matrices_by_parameter(checkpoint.network)
    targets = {}
    for name, place in checkpoint.placements.items():
        is_head = place.parameter == OWN_HEAD
        projects = isinstance(matrices.get(place.parameter), Linear) and not place.precise
        if projects and (head or not is_head):
            targets[name.removesuffix(".weight")] = Target(
                name,
                PackFormat.INT8 if is_head else pack_format,
                _matrix(place),
                place.parameter,
                place.first_row,
            )
    if head:
        for name, original in checkpoint.copies.items():
            place = checkpoint.placements[original]
            targets[name.removesuffix(".weight")] = Target(
                original, PackFormat.INT8, _matrix(place), place.parameter
            )
    return targets


def matrices_by_parameter(network: nn.Module) -> dict[str, Matrix]:
    """Every linear of the text decoder and its embedding, by the name of their weights."""
    text = network.get_submodule(TEXT.rstrip("."))
    return {
        f"{TEXT}{name}.weight": module for name, module in text.named_modules() if isinstance(module, Matrix)
    }


def _matrix(place: Placement) -> tuple[int, int]:
    rows, width = place.shape
    return rows, width
