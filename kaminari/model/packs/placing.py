"""Puts a pack's weights into a network, each as its device's kernel: no full weight is ever there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import torch
from torch import Tensor

from kaminari.config.quantization import PackFormat
from kaminari.model.family import CheckpointError, Footprint
from kaminari.model.kernels.linears import linear_kernel, quantized_obstacle
from kaminari.model.layers import Embedding
from kaminari.model.linear import LinearKernel, TableKernel
from kaminari.model.loading import OpenCheckpoint, Placement, open_file
from kaminari.model.packs.reading import Pack
from kaminari.model.packs.stacking import PlainKernel, StackedKernel
from kaminari.model.packs.targets import find_targets, matrices_by_parameter
from kaminari.model.quantized import QuantizedWeight, join_rows


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a linear.

    name:    a target of the pack, or a tensor of the checkpoint
    format:  of the target; None where the rows keep their precision
    """

    name: str
    format: PackFormat | None
    shape: tuple[int, ...]


class PackedMatrices:
    """The matrices of a checkpoint's network that a pack fills, and of which parts, in the order of rows.

    rest:  the tensors of the checkpoint that fill their parameters as ever
    """

    def __init__(self, checkpoint: OpenCheckpoint, pack: Pack) -> None:
        self._checkpoint = checkpoint
        self._pack = pack
        self._parts = _parts(checkpoint, pack)
        self.rest: dict[str, Placement] = {
            name: place for name, place in checkpoint.placements.items() if place.parameter not in self._parts
        }

    @property
    def nbytes(self) -> int:
        """Bytes that `fill` reads."""
        kept = (self._checkpoint.tensors[part.name].nbytes for part in self._precise())
        return self._pack.nbytes + sum(kept)

    def footprint(self, plain: Footprint, dtype: torch.dtype) -> Footprint:
        """What the model needs with the pack, from what it needs without."""
        matrices = matrices_by_parameter(self._checkpoint.network)
        released = sum(matrices[name].weight.numel() for name in self._parts)
        kept = sum(prod(part.shape) for part in self._precise())
        weights = plain.weights - (released - kept) * dtype.itemsize + self._pack.nbytes
        return replace(plain, weights=weights)

    def check_device(self, device: torch.device, dtype: torch.dtype) -> None:
        """Raise `CheckpointError` for a device that has no kernel for a pack."""
        if reason := quantized_obstacle(device, dtype):
            raise self._no_kernel(device, dtype, reason)

    def release(self) -> None:
        """Let go of the weights, before they are given memory."""
        matrices = matrices_by_parameter(self._checkpoint.network)
        for parameter in self._parts:
            matrices[parameter].release_weight()

    def fill(self, device: torch.device, dtype: torch.dtype, done: Callable[[int], object]) -> None:
        """Give every matrix its kernel, the largest first: while a weight is repacked it is held twice.

        done:  called with the bytes read so far

        Raises `CheckpointError`.
        """
        matrices = matrices_by_parameter(self._checkpoint.network)
        total = 0
        for parameter, parts in sorted(self._parts.items(), key=lambda each: -_values(each[1])):
            kernels: list[LinearKernel] = []
            for format_, run in groupby(parts, key=lambda part: part.format):
                names = [part.name for part in run]
                if format_ is None:
                    weight, nbytes = self._read_precise(names)
                    weight = weight.to(device, dtype)
                    kernels.append(linear_kernel(weight, device, dtype) or PlainKernel(weight))
                else:
                    quantized, nbytes = self._read_quantized(names)
                    kernels.append(self._kernel(quantized, device, dtype))
                total += nbytes
            kernel = kernels[0] if len(kernels) == 1 else StackedKernel(kernels)
            matrix = matrices[parameter]
            if isinstance(matrix, Embedding):
                assert isinstance(kernel, TableKernel), "every kernel of an int8 weight is one"
                matrix.hold(kernel)
            else:
                matrix.kernel = kernel
            done(total)

    def _kernel(self, weight: QuantizedWeight, device: torch.device, dtype: torch.dtype) -> LinearKernel:
        kernel = linear_kernel(weight, device, dtype)
        if kernel is None:
            raise self._no_kernel(device, dtype, quantized_obstacle(device, dtype))
        return kernel

    def _no_kernel(self, device: torch.device, dtype: torch.dtype, reason: str) -> CheckpointError:
        because = f" ({reason})" if reason else ""
        return CheckpointError(
            f"there is no kernel for {self._pack.header.word} on {device} in {dtype}{because}: "
            "use --quantization none, or --device cpu"
        )

    def _precise(self) -> list[Part]:
        return [part for parts in self._parts.values() for part in parts if part.format is None]

    def _read_precise(self, names: Sequence[str]) -> tuple[Tensor, int]:
        rows = []
        for name in names:
            with open_file(self._checkpoint.tensors[name].file) as file:
                rows.append(file.get_tensor(name))
        return torch.cat(rows), sum(each.nbytes for each in rows)

    def _read_quantized(self, names: Sequence[str]) -> tuple[QuantizedWeight, int]:
        """The rows of several targets as one weight, in memory of its own, and the bytes that were read."""
        with open_file(self._pack.file) as file:
            weights = [self._pack.read(file, name) for name in names]
            return join_rows(weights), sum(weight.nbytes for weight in weights)


def _values(parts: Sequence[Part]) -> int:
    return sum(prod(part.shape) for part in parts)


def _parts(checkpoint: OpenCheckpoint, pack: Pack) -> dict[str, list[Part]]:
    """By parameter; a parameter that the pack leaves alone is not among them."""
    header = pack.header
    rows: dict[str, list[tuple[int, Part]]] = {}
    for name, target in find_targets(checkpoint, header.format, head=header.head).items():
        part = Part(name, target.format, target.shape)
        rows.setdefault(target.parameter, []).append((target.first_row, part))
    for name, place in checkpoint.placements.items():
        if place.precise and place.parameter in rows:
            rows[place.parameter].append((place.first_row, Part(name, None, place.shape)))
    return {
        parameter: [part for _, part in sorted(parts, key=lambda each: each[0])]
        for parameter, parts in rows.items()
    }
