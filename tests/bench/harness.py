"""A bench over a tiny model, without a progress bar."""

from __future__ import annotations

from pathlib import Path

from kaminari.bench.bench import Bench
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import Limits
from kaminari.bench.subject import fit, load_subject
from kaminari.config import DtypeChoice, EngineSettings, Folder, KernelChoice, ModelSettings, Settings

LIMITS = Limits(read_rate=1e10, read_bytes=1 << 20, multiply_rate=1e11, multiply_dtype="float32")


def tiny_settings(folder: Path, kernels: KernelChoice = KernelChoice.AUTO) -> Settings:
    return Settings(
        model=ModelSettings(source=Folder(folder), dtype=DtypeChoice.FLOAT32, kernels=kernels),
        engine=EngineSettings(threads=1, prefill_chunk=32),
    )


def bench_of(
    folder: Path,
    options: Options,
    *,
    slots: int = 4,
    context: int = 160,
    kernels: KernelChoice = KernelChoice.AUTO,
) -> Bench:
    """A loaded model with limits that were not measured."""
    subject = load_subject(fit(tiny_settings(folder, kernels), slots, context))
    return Bench(subject, options, Recorder(lambda text, done, total: None), limits=LIMITS)
