"""From settings to a model that is ready to run. Called on the engine's thread, which then owns it all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import kaminari
from kaminari.config import (
    CompileChoice,
    Demo,
    Folder,
    KernelChoice,
    ModelSettings,
    ModelSource,
    PictureMode,
    PictureSettings,
    Settings,
    StandardPack,
)
from kaminari.engine.capacity import Capacity, plan_capacity, usable_memory
from kaminari.engine.conversation import Detail
from kaminari.engine.frontend import Frontend, PictureRules
from kaminari.engine.info import EngineInfo
from kaminari.engine.logit_table import logit_table_bytes
from kaminari.engine.memory import available_memory
from kaminari.engine.placement import (
    Dtypes,
    PlacementError,
    cpu_threads,
    pipeline_depth,
    prefill_chunk,
    resolve_device,
    resolve_dtypes,
)
from kaminari.engine.sampling_table import SAMPLING_TABLE_BYTES
from kaminari.model import attention, delta_kernels
from kaminari.model.family import (
    CheckpointError,
    Family,
    Footprint,
    LoadOptions,
    PictureBudget,
    PromptFormat,
    VisionLanguageModel,
    find_family,
)
from kaminari.model.hub import download_checkpoint
from kaminari.model.kernels.native.build import allow_native, native_kernels
from kaminari.model.loading import OpenCheckpoint
from kaminari.model.packs.placing import PackedMatrices
from kaminari.model.packs.reading import Pack, open_pack

Progress = Callable[[int, int], None]
DEMO_FOLDER = Path(kaminari.__file__).parent / "demo"


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is settled before a weight is read: which checkpoint, where, how precise, and how much fits.

    own_weight_bytes:  what the weights would take without the pack
    """

    folder: Path
    family: Family
    prompt_format: PromptFormat
    device: torch.device
    dtypes: Dtypes
    pack: Pack | None
    own_weight_bytes: int
    footprint: Footprint
    memory: int
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine's thread needs: the model, the prompt side, and what both say of themselves."""

    model: VisionLanguageModel
    frontend: Frontend
    end_token_ids: frozenset[int]
    info: EngineInfo


def checkpoint_folder(source: ModelSource) -> Path:
    """Return the local folder of a model source; a hub id is downloaded. Raises `CheckpointError`."""
    if isinstance(source, Demo):
        return DEMO_FOLDER
    if isinstance(source, Folder):
        return source.path
    return download_checkpoint(source.repo, source.revision)


def find_pack(settings: ModelSettings, checkpoint: OpenCheckpoint, family: str) -> Pack:
    """Open the pack that the settings ask for. Raises `CheckpointError`."""
    folder, quantization = settings.pack_folder, settings.quantization
    assert folder is not None
    command = f"kaminari quantize {settings.source} --to"
    if not folder.is_dir():
        if isinstance(quantization, StandardPack):
            raise CheckpointError(
                f"there is no {quantization} pack of {settings.source} in {folder}; "
                f"make it with: {command} {quantization}"
            )
        raise CheckpointError(f"there is no pack in {folder}; make it with: {command} int4 -o {folder}")
    pack = open_pack(folder, checkpoint, family)
    if isinstance(quantization, StandardPack) and pack.header.format is not quantization.format:
        raise CheckpointError(
            f"{folder} holds an {pack.header.format} pack; make the other with: {command} {quantization}"
        )
    return pack


def plan_model(settings: Settings) -> ModelPlan:
    """Settle everything that can be known without reading a weight.

    Raises `CheckpointError`, `PlacementError` or `CapacityError`.
    """
    device = resolve_device(settings.model.device)
    dtypes = resolve_dtypes(settings.model, device)
    folder = checkpoint_folder(settings.model.source)
    family = find_family(folder)
    prompt_format = family.prompt_format(folder)
    own = footprint = family.footprint(folder, dtypes.decoder, dtypes.vision)
    pack = None
    if settings.model.pack_folder is not None:
        if settings.model.compile is CompileChoice.ON:
            raise PlacementError("model.compile takes plain weights alone; set model.quantization to none")
        checkpoint = family.open(folder)
        pack = find_pack(settings.model, checkpoint, family.name)
        packed = PackedMatrices(checkpoint, pack)
        packed.check_device(device, dtypes.decoder)
        footprint = packed.footprint(own, dtypes.decoder)
    memory = usable_memory(available_memory(device), settings.engine.memory_limit)
    capacity = plan_capacity(
        footprint,
        slots=settings.engine.slots,
        context=settings.engine.context,
        max_context=prompt_format.max_context,
        memory=memory,
        tables=logit_table_bytes(footprint.vocab_size, len(prompt_format.end_token_ids))
        + SAMPLING_TABLE_BYTES,
    )
    return ModelPlan(
        folder, family, prompt_format, device, dtypes, pack, own.weights, footprint, memory, capacity
    )


def load_model(settings: Settings, progress: Progress | None = None) -> LoadedModel:
    """Plan, load and describe the model that the settings name. Sets this thread's thread count.

    `progress` is called with (bytes loaded, bytes in all). Raises what `plan_model` raises.
    """
    plan = plan_model(settings)
    if plan.device.type == "cpu":
        torch.set_num_threads(cpu_threads(settings.engine.threads, plan.footprint.weights))
    frontend = Frontend(
        plan.folder, plan.prompt_format, picture_rules(settings.pictures), plan.capacity.context
    )
    compiled = settings.model.compile is CompileChoice.ON
    options = LoadOptions(plan.device, plan.dtypes.decoder, plan.dtypes.vision, progress, plan.pack, compiled)
    allow_native(settings.model.kernels is KernelChoice.AUTO)
    model = plan.family.load(plan.folder, options)
    info = EngineInfo(
        model=settings.model.name,
        family=plan.family.name,
        device=str(plan.device),
        dtype=_spell(plan.dtypes.decoder),
        vision_dtype=_spell(plan.dtypes.vision),
        quantization="none" if plan.pack is None else plan.pack.header.word,
        slots=plan.capacity.slots,
        context=plan.capacity.context,
        vocab_size=model.vocab_size,
        choices=min(settings.engine.max_choices, plan.capacity.slots),
        weight_bytes=plan.capacity.weight_bytes,
        cache_bytes=plan.capacity.cache_bytes,
        demo=isinstance(settings.model.source, Demo),
        aliases=settings.model.aliases,
        kernels=kernels_word(plan, lambda: native_kernels().word),
        pipeline_depth=pipeline_depth(settings.engine.pipeline_depth, plan.device),
        prefill_chunk=prefill_chunk(settings.engine.prefill_chunk, plan.capacity.weight_bytes, plan.device),
    )
    return LoadedModel(model, frontend, plan.prompt_format.end_token_ids, info)


def kernels_word(plan: ModelPlan, native: Callable[[], str]) -> str:
    """Whose kernels run: what `native` says on a CPU; on CUDA those of attention and of delta nets, which are
    tried for it."""
    if plan.device.type == "cpu":
        return native()
    device, dtype, footprint = plan.device, plan.dtypes.decoder, plan.footprint
    words = [] if footprint.heads is None else [attention.cuda_word(device, dtype, footprint.heads)]
    # what a slot takes whatever its length are the states of delta nets
    words += [delta_kernels.cuda_word(device, dtype)] if footprint.cache_per_slot else []
    return ", ".join(words)


def picture_rules(settings: PictureSettings) -> PictureRules:
    """What the frontend may do with pictures: a budget per detail, and the bounds."""
    letterbox = settings.mode is PictureMode.LETTERBOX
    tokens = {
        Detail.LOW: settings.budgets.low,
        Detail.AUTO: settings.budgets.auto,
        Detail.HIGH: settings.budgets.high,
    }
    return PictureRules(
        budgets={detail: PictureBudget(most, letterbox) for detail, most in tokens.items()},
        max_pixels=settings.max_pixels,
        max_count=settings.max_count,
    )


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
