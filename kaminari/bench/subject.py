"""The model that is measured: the settings made to fit the cases, the loaded model, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kaminari.bench.result import Subject
from kaminari.bench.work import DecoderWork, decoder_work
from kaminari.config import EngineSettings, KernelChoice, Settings
from kaminari.engine.loading import (
    LoadedModel,
    ModelPlan,
    Progress,
    checkpoint_folder,
    load_model,
    plan_model,
)
from kaminari.engine.placement import cpu_threads
from kaminari.model.family import find_family


class CasesError(Exception):
    """Cases that the model or the settings leave no room for; the message is one line."""


@dataclass(frozen=True, slots=True)
class LoadedSubject:
    """A loaded model and what is known of it."""

    settings: Settings
    plan: ModelPlan
    loaded: LoadedModel
    work: DecoderWork

    @property
    def device(self) -> torch.device:
        return self.plan.device


def longest_context(settings: Settings) -> int:
    """The most tokens that the checkpoint's positions allow. Raises `CheckpointError`."""
    folder = checkpoint_folder(settings.model.source)
    return find_family(folder).prompt_format(folder).max_context


def allowed(lengths: tuple[int, ...], longest: int, asked: bool) -> tuple[int, ...]:
    """The lengths that a model takes. One that was asked for and is too long raises `CasesError`."""
    fitting = tuple(length for length in lengths if length <= longest)
    if len(fitting) < len(lengths) and (asked or not fitting):
        raise CasesError(
            f"{max(lengths)} tokens are more than this model's {longest}; ask for at most {longest}"
        )
    return fitting


def fit(settings: Settings, slots: int, context: int) -> Settings:
    """Settings with exactly the slots and the context that the cases need.

    Raises `CasesError` where the person's own settings leave less.
    """
    engine = settings.engine
    for name, wish, needed in (("slots", engine.slots, slots), ("context", engine.context, context)):
        if wish != "auto" and wish < needed:
            raise CasesError(f"the cases need {name} {needed}, and the setting is {wish}; raise --{name}")
    fields = dict(engine)
    # choices may be fewer than what was set: the session needs no more than its rows
    fields |= {"slots": slots, "context": context, "max_choices": slots}
    return settings.model_copy(update={"engine": EngineSettings.model_validate(fields)})


def load_subject(settings: Settings, progress: Progress | None = None) -> LoadedSubject:
    """Load the model on this thread and count it. Raises what `load_model` raises."""
    plan = plan_model(settings)
    loaded = load_model(settings, progress)
    return LoadedSubject(settings, plan, loaded, decoder_work(loaded.model, plan.footprint))


def describe(settings: Settings, plan: ModelPlan) -> Subject:
    return Subject(
        name=settings.model.name,
        family=plan.family.name,
        device=plan.device.type,
        dtype=_spell(plan.dtypes.decoder),
        vision_dtype=_spell(plan.dtypes.vision),
        quantization="none" if plan.pack is None else plan.pack.header.word,
        threads=cpu_threads(settings.engine.threads, plan.footprint.weights),
        weight_bytes=plan.capacity.weight_bytes,
        kernels=None if settings.model.kernels is KernelChoice.AUTO else settings.model.kernels.value,
    )


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
