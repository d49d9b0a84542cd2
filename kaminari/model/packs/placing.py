"""Puts a pack's weights into a network, each as its device's kernel: no full weight is ever there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import torch
from torch import Tensor

from kaminari.config.quantization import PackFormat
from kaminari.model.family import CheckpointError, Footprint
from kaminari.model.kernels.linears import Filling, begin_kernel, linear_kernel, quantized_obstacle
from kaminari.model.layers import Embedding
from kaminari.model.linear import LinearKernel, TableKernel
from kaminari.model.loading import OpenCheckpoint, Placement, open_file
from kaminari.model.packs.reading import Pack
from kaminari.model.packs.side_by_side import side_by_side
from kaminari.model.packs.stacking import PlainKernel, StackedKernel
from kaminari.model.packs.targets import find_targets, matrices_by_parameter

MOST_THREADS = 8
"""Each may hold a weight that is not repacked yet, where kernels take whole ones."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a linear.

    name:    a target of the pack, or a tensor of the checkpoint
    format:  of the target; None where the rows keep their precision
    """

    name: str
    format: PackFormat | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of a matrix that one kernel will hold.

    filling:  where they go; None where they keep their precision
    """

    parts: list[Part]
    filling: Filling | None


@dataclass(frozen=True, slots=True)
class _Matrix:
    parameter: str
    runs: list[_Run]


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
        """Give every matrix its kernel, the largest first.

        Weights are read, checked and packed side by side, on as many threads as torch has here.

        done:  called with the bytes read so far

        Raises `CheckpointError`.
        """
        matrices = matrices_by_parameter(self._checkpoint.network)
        total = 0
        begun = (
            _Matrix(parameter, [self._begin(list(run), device, dtype) for _, run in _runs(parts)])
            for parameter, parts in sorted(self._parts.items(), key=lambda each: -_values(each[1]))
        )
        threads = min(MOST_THREADS, torch.get_num_threads())
        with side_by_side(begun, self._read, threads) as finished:
            for each in finished:
                kernels = [self._kernel(run, device, dtype) for run in each.runs]
                kernel = kernels[0] if len(kernels) == 1 else StackedKernel(kernels)
                matrix = matrices[each.parameter]
                if isinstance(matrix, Embedding):
                    assert isinstance(kernel, TableKernel), "every kernel of an int8 weight is one"
                    matrix.hold(kernel)
                else:
                    matrix.kernel = kernel
                total += sum(self._nbytes(part) for run in each.runs for part in run.parts)
                done(total)

    def _begin(self, parts: list[Part], device: torch.device, dtype: torch.dtype) -> _Run:
        """Rows of one kind and where they go; nothing is read, and no memory touched."""
        if parts[0].format is None:
            return _Run(parts, None)
        rows = sum(part.shape[0] for part in parts)
        kind = self._pack.kind(parts[0].name)
        return _Run(parts, begin_kernel(replace(kind, shape=(rows, kind.shape[1])), device, dtype))

    def _read(self, matrix: _Matrix) -> None:
        """Read, check and pack a matrix's quantized rows. Runs on a thread of its own, beside others."""
        with open_file(self._pack.file) as file:
            for run in matrix.runs:
                if run.filling is None:
                    continue
                start = 0
                for part in run.parts:
                    for first_row, rows in self._pack.blocks(file, part.name):
                        run.filling.put(start + first_row, rows)
                    start += part.shape[0]

    def _kernel(self, run: _Run, device: torch.device, dtype: torch.dtype) -> LinearKernel:
        if run.filling is None:
            weight = self._read_precise([part.name for part in run.parts]).to(device, dtype)
            return linear_kernel(weight, device, dtype) or PlainKernel(weight)
        kernel = run.filling.kernel()
        if kernel is None:
            raise self._no_kernel(device, dtype, quantized_obstacle(device, dtype))
        return kernel

    def _nbytes(self, part: Part) -> int:
        """Bytes of a part in its file."""
        if part.format is None:
            return self._checkpoint.tensors[part.name].nbytes
        return self._pack.kind(part.name).nbytes

    def _no_kernel(self, device: torch.device, dtype: torch.dtype, reason: str) -> CheckpointError:
        because = f" ({reason})" if reason else ""
        return CheckpointError(
            f"there is no kernel for {self._pack.header.word} on {device} in {dtype}{because}: "
            "use --quantization none, or --device cpu"
        )

    def _precise(self) -> list[Part]:
        return [part for parts in self._parts.values() for part in parts if part.format is None]

    def _read_precise(self, names: Sequence[str]) -> Tensor:
        rows = []
        for name in names:
            with open_file(self._checkpoint.tensors[name].file) as file:
                rows.append(file.get_tensor(name))
        return torch.cat(rows)


def _runs(parts: Sequence[Part]) -> Iterator[tuple[PackFormat | None, Iterator[Part]]]:
    """Parts of one format that lie one behind the other."""
    return groupby(parts, key=lambda part: part.format)


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
