"""Makes a pack of a checkpoint in bounded memory, and holds the written file to the checkpoint it came from.

A pack appears whole or not at all: it is made in a folder beside its place and moved there at the end. A
folder that holds anything but a pack is never touched.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from kaminari import __version__
from kaminari.config.quantization import PackFormat
from kaminari.model.family import CheckpointError
from kaminari.model.loading import OpenCheckpoint, StoredTensor, open_file
from kaminari.model.packs.digest import UNKNOWN, Digest, parts
from kaminari.model.packs.format import (
    METADATA_KEY,
    PACK_FILE,
    REPORT_FILE,
    VERSION,
    GroupSize,
    PackHeader,
    PackTarget,
    is_pack,
)
from kaminari.model.packs.gptq import Feedback, Moments, feedback, quantize_int4_by
from kaminari.model.packs.reading import Pack, fingerprints, open_pack
from kaminari.model.packs.rounding import Method, quantize_int4, quantize_int8
from kaminari.model.packs.targets import Target, find_targets
from kaminari.model.packs.tensor_file import TensorFile
from kaminari.model.quantized import QuantizedWeight

# values of a weight that are worked on at once: few enough for a core's cache, where a fit is twice as fast
BLOCK_VALUES = 1 << 17
# of gptq, which takes a step per column, however many rows there are
GPTQ_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to make: the format of the projections, and whether the head becomes int8.

    group_size, method:  of int4 alone
    """

    format: PackFormat
    group_size: GroupSize = 64
    method: Method = Method.FIT
    head: bool = False


@dataclass(frozen=True, slots=True)
class MadePack:
    """A pack that was written and read back.

    errors:        by target, |dequantized - weight| / |weight| in the Frobenius norm
    source_bytes:  of the weights that it was made of
    kept:          how many tensors of the checkpoint are used beside it
    """

    pack: Pack
    errors: Mapping[str, float]
    source_bytes: int
    kept: int


def check_place(folder: Path) -> None:
    """Raise `CheckpointError` unless a pack may be put there: nothing is, or an empty folder, or a pack."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is in the way, and it is no folder")
    if any(folder.iterdir()) and not is_pack(folder):
        raise CheckpointError(f"{folder} holds other things than a pack; give another folder with -o")


def make_pack(
    checkpoint: OpenCheckpoint,
    recipe: Recipe,
    folder: Path,
    *,
    model: str,
    family: str,
    moments: Moments | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MadePack:
    """Quantize a checkpoint into a folder, which replaces a pack that is there.

    model:     its name, for people
    moments:   of the inputs of every linear; gptq alone needs them
    progress:  called with (values done, values in all); every value is written and then read back

    Raises `CheckpointError` or OSError; nothing is left behind then.
    """
    check_place(folder)
    targets = find_targets(checkpoint, recipe.format, head=recipe.head)
    header = _header(checkpoint, recipe, targets, model, family)
    counter = _Counter(2 * sum(math.prod(target.shape) for target in targets.values()), progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = Path(scratch) / "new"
        made.mkdir()
        with TensorFile(made / PACK_FILE, header.stored_tensors(), _metadata(header)) as file:
            rounding = _Rounding(recipe, moments)
            digests = {
                name: _write(file, name, target, rounding, checkpoint.tensors, counter)
                for name, target in targets.items()
            }
            file.describe(_metadata(_with_digests(header, digests)))
        errors = _read_back(open_pack(made, checkpoint, family), targets, checkpoint.tensors, counter)
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)
    return MadePack(
        open_pack(folder, checkpoint, family),
        errors,
        sum(checkpoint.tensors[target.source].nbytes for target in targets.values()),
        len(checkpoint.placements) - len(targets),
    )


def save_report(folder: Path, text: str) -> None:
    """Keep a report beside a pack. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        new = Path(scratch) / REPORT_FILE
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(folder / REPORT_FILE)


def _header(
    checkpoint: OpenCheckpoint, recipe: Recipe, targets: Mapping[str, Target], model: str, family: str
) -> PackHeader:
    if not targets:
        raise CheckpointError(f"{model} has no projections to quantize")
    prints = fingerprints({target.source for target in targets.values()}, checkpoint.tensors)
    int4 = recipe.format is PackFormat.INT4
    return PackHeader(
        version=VERSION,
        format=recipe.format,
        group_size=recipe.group_size if int4 else None,
        method=recipe.method if int4 else Method.RTN,
        head=recipe.head,
        model=model,
        family=family,
        made_by=f"kaminari {__version__}",
        targets={
            name: PackTarget(
                source=target.source,
                format=target.format,
                shape=target.shape,
                fingerprint=prints[target.source],
                digest=UNKNOWN,
            )
            for name, target in targets.items()
        },
    )


def _with_digests(header: PackHeader, digests: Mapping[str, str]) -> PackHeader:
    targets = {
        name: target.model_copy(update={"digest": digests[name]}) for name, target in header.targets.items()
    }
    return header.model_copy(update={"targets": targets})


def _metadata(header: PackHeader) -> dict[str, str]:
    return {METADATA_KEY: header.model_dump_json(), "format": "pt"}


def _write(
    file: TensorFile,
    name: str,
    target: Target,
    rounding: _Rounding,
    tensors: Mapping[str, StoredTensor],
    counter: _Counter,
) -> str:
    """Round and write a weight block by block; its digest."""
    digest = Digest()
    for first_row, rows in _blocks(tensors[target.source], target, rounding.block_values):
        if not bool(rows.isfinite().all()):
            raise CheckpointError(
                f"{target.source} in {tensors[target.source].file.name} holds values that are not finite"
            )
        weight = rounding.round(target, rows)
        for part, values in parts(weight).items():
            file.write_rows(f"{name}.{part}", first_row, values)
        digest.add(weight)
        counter.add(rows.numel())
    return digest.hex()


def _read_back(
    pack: Pack, targets: Mapping[str, Target], tensors: Mapping[str, StoredTensor], counter: _Counter
) -> dict[str, float]:
    """Check every value of the written file, and how far each weight is from the checkpoint's."""
    errors = {}
    with open_file(pack.file) as file:
        for name, target in targets.items():
            weight = pack.read(file, name)
            off = size = 0.0
            for first_row, rows in _blocks(tensors[target.source], target, BLOCK_VALUES):
                read = weight.rows(first_row, first_row + rows.shape[0]).dequantize()
                off += float((read - rows).square().sum())
                size += float(rows.square().sum())
                counter.add(rows.numel())
            errors[name] = math.sqrt(off / size) if size else 0.0
    return errors


def _blocks(stored: StoredTensor, target: Target, values: int) -> Iterator[tuple[int, Tensor]]:
    """The tensor in blocks of rows that hold about as many values: (first row, float32 [n, width])."""
    height, width = target.shape
    step = max(1, values // width)
    with open_file(stored.file) as file:
        view: Any = file.get_slice(target.source)
        for first_row in range(0, height, step):
            yield first_row, view[first_row : min(first_row + step, height)].float()


class _Rounding:
    """Rounds rows as a recipe says, and keeps what it knows of a linear's inputs for all its targets."""

    def __init__(self, recipe: Recipe, moments: Moments | None) -> None:
        self._recipe = recipe
        self._moments = moments if recipe.method is Method.GPTQ else None
        self._known: tuple[str, Feedback] | None = None
        if recipe.method is Method.GPTQ and moments is None:
            raise ValueError("gptq needs the moments of inputs")

    @property
    def block_values(self) -> int:
        return BLOCK_VALUES if self._moments is None else GPTQ_BLOCK_VALUES

    def round(self, target: Target, rows: Tensor) -> QuantizedWeight:
        if target.format is PackFormat.INT8:
            return quantize_int8(rows)
        if self._moments is None:
            return quantize_int4(rows, self._recipe.group_size, self._recipe.method)
        if self._known is None or self._known[0] != target.parameter:
            self._known = target.parameter, feedback(self._moments.of(target.parameter))
        return quantize_int4_by(rows, self._recipe.group_size, self._known[1])


class _Counter:
    """Adds up and tells."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress
        self.add(0)

    def add(self, values: int) -> None:
        self._done += values
        if self._progress is not None:
            self._progress(self._done, self._total)
