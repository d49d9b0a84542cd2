"""Which weights of a checkpoint a pack holds: the projections of its decoder, and on request its head.

Embeddings, norms, convolutions, gates of a few rows (`Placement.precise`) and the vision half keep their
precision and their place in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from kaminari.config.quantization import PackFormat
from kaminari.model.linear import Linear
from kaminari.model.loading import OpenCheckpoint, Placement

TEXT = "text."
HEAD_PARAMETER = "text.own_head.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """One weight to be quantized: the tensor that holds it, its format, and the rows that it fills."""

    source: str
    format: PackFormat
    shape: tuple[int, int]
    parameter: str
    first_row: int = 0


def find_targets(checkpoint: OpenCheckpoint, pack_format: PackFormat, *, head: bool) -> dict[str, Target]:
    """The targets of a checkpoint by their names in a pack. A tied head gets a copy of its own."""
    linears = linears_by_parameter(checkpoint.network)
    targets = {}
    for name, place in checkpoint.placements.items():
        is_head = place.parameter == HEAD_PARAMETER
        if place.parameter in linears and not place.precise and (head or not is_head):
            targets[name.removesuffix(".weight")] = Target(
                name,
                PackFormat.INT8 if is_head else pack_format,
                _matrix(place),
                place.parameter,
                place.first_row,
            )
    if head:
        for name, original in checkpoint.copies.items():
            shape = _matrix(checkpoint.placements[original])
            targets[name.removesuffix(".weight")] = Target(original, PackFormat.INT8, shape, HEAD_PARAMETER)
    return targets


def linears_by_parameter(network: nn.Module) -> dict[str, Linear]:
    """Every linear of the text decoder, by the name of its weight."""
    text = network.get_submodule(TEXT.rstrip("."))
    return {
        f"{TEXT}{name}.weight": module for name, module in text.named_modules() if isinstance(module, Linear)
    }


def _matrix(place: Placement) -> tuple[int, int]:
    rows, width = place.shape
    return rows, width
