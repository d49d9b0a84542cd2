"""Runs a model with its own weights and then from a pack, and compares: the quality report of a pack.

The two are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kaminari.config import KernelChoice, NoQuantization, PackFolder, Settings
from kaminari.engine.engine import Engine
from kaminari.engine.loading import checkpoint_folder
from kaminari.engine.placement import resolve_device, resolve_dtypes
from kaminari.model.family import LoadOptions, find_family
from kaminari.model.kernels.native.build import allow_native
from kaminari.model.packs.reading import Pack
from kaminari.model.stages import find_stages
from kaminari.verify.pages import Page, Reading, ask, score
from kaminari.verify.prompts import Prompt
from kaminari.verify.quality import Observation, Quality, compare, observe
from kaminari.verify.replay import Replayer, open_frontend

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReadPages:
    """How the pages of one kind were read with the model's own weights, and from the pack."""

    own: Reading
    pack: Reading


def compare_prompts(
    settings: Settings, pack: Pack, prompts: Sequence[Prompt], tokens: int, say: Say
) -> Quality:
    """Compare every stage and `tokens` tokens of answer, on prompts.

    Raises `CheckpointError`, `PlacementError` or `RequestError`.
    """
    model = settings.model
    allow_native(model.kernels is KernelChoice.AUTO)
    device = resolve_device(model.device)
    dtypes = resolve_dtypes(model, device)
    folder = checkpoint_folder(model.source)
    family, stages = find_family(folder), find_stages(folder)
    frontend = open_frontend(folder, max(len(prompt.pictures) for prompt in prompts))
    prepared = {prompt.name: frontend.prepare(prompt.conversation()) for prompt in prompts}
    seen: list[list[Observation]] = []
    for each, words in ((None, "its own weights"), (pack, "the pack")):
        say(f"running the model with {words}")
        options = LoadOptions(device, dtypes.decoder, dtypes.vision, pack=each)
        replayer = Replayer(family.load(folder, options), stages, frontend)
        seen.append(observe(replayer, prepared, tokens, given=seen[0] if seen else ()))
        del replayer
    return compare(*seen)


def compare_pages(settings: Settings, pack: Pack, pages: Sequence[Page], say: Say) -> tuple[ReadPages, ...]:
    """Let the engine read the pages, as a server with these settings would; a comparison for each kind.

    Raises `PageError`, `EngineFault`, and what `Engine.load` raises.
    """
    readings = []
    for quantization, words in (
        (NoQuantization(), "its own weights"),
        (PackFolder(pack.folder), "the pack"),
    ):
        model = settings.model.model_copy(update={"quantization": quantization})
        with Engine.load(settings.model_copy(update={"model": model})) as engine:
            done = 0

            def answered(words: str = words) -> None:
                nonlocal done
                done += 1
                say(f"reading pages with {words}: {done} of {len(pages)}")

            readings.append(score(pages, ask(engine, pages, answered)))
    return tuple(ReadPages(own, packed) for own, packed in zip(*readings, strict=True))
