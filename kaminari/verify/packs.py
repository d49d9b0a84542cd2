"""Runs a model for its pack: with its own weights to calibrate, and then from the pack to compare.

The two are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kaminari.config import KernelChoice, ModelSettings, NoQuantization, PackFolder, Settings
from kaminari.engine.engine import Engine
from kaminari.engine.loading import checkpoint_folder
from kaminari.engine.placement import resolve_device, resolve_dtypes
from kaminari.model.family import LoadOptions, VisionLanguageModel, find_family
from kaminari.model.kernels.native.build import allow_native
from kaminari.model.packs.reading import Pack
from kaminari.model.stages import find_stages
from kaminari.verify.calibration import Calibration
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


class _Subject:
    """A checkpoint where the settings place it, and its prompts."""

    def __init__(self, settings: ModelSettings, prompts: Sequence[Prompt]) -> None:
        allow_native(settings.kernels is KernelChoice.AUTO)
        self._device = resolve_device(settings.device)
        self._dtypes = resolve_dtypes(settings, self._device)
        self._folder = checkpoint_folder(settings.source)
        self._frontend = open_frontend(self._folder, max(len(prompt.pictures) for prompt in prompts))
        self.prepared = [self._frontend.prepare(prompt.conversation()) for prompt in prompts]

    def load(self, pack: Pack | None) -> tuple[VisionLanguageModel, Replayer]:
        options = LoadOptions(self._device, self._dtypes.decoder, self._dtypes.vision, pack=pack)
        model = find_family(self._folder).load(self._folder, options)
        return model, Replayer(model, find_stages(self._folder), self._frontend)


def calibrate(settings: Settings, prompts: Sequence[Prompt], tokens: int) -> Calibration:
    """Load the model and let it answer; its moments are gathered as they are asked for.

    Raises `CheckpointError`, `PlacementError` or `RequestError`.
    """
    subject = _Subject(settings.model, prompts)
    model, replayer = subject.load(None)
    return Calibration(model, replayer, subject.prepared, tokens)


def compare_prompts(
    settings: Settings, pack: Pack, prompts: Sequence[Prompt], tokens: int, say: Say
) -> Quality:
    """Compare every stage and `tokens` tokens of answer, on prompts.

    Raises `CheckpointError`, `PlacementError` or `RequestError`.
    """
    subject = _Subject(settings.model, prompts)
    prepared = dict(zip((prompt.name for prompt in prompts), subject.prepared, strict=True))
    seen: list[list[Observation]] = []
    for each, words in ((None, "its own weights"), (pack, "the pack")):
        say(f"running the model with {words}")
        _, replayer = subject.load(each)
        seen.append(observe(replayer, prepared, tokens, given=seen[0] if seen else ()))
        del replayer, _
    return compare(*seen)


def compare_pages(settings: Settings, pack: Pack, pages: Sequence[Page], say: Say) -> tuple[ReadPages, ...]:
    """Let the engine read the pages, as a server with these settings would; a comparison for each kind.

    Raises `PageError`, `EngineFault`, and what `Engine.load` raises.
    """
    readings = [
        score(pages, answer_pages(settings, quantization, pages, say))
        for quantization in (NoQuantization(), PackFolder(pack.folder))
    ]
    return tuple(ReadPages(own, packed) for own, packed in zip(*readings, strict=True))


def answer_pages(
    settings: Settings, quantization: NoQuantization | PackFolder, pages: Sequence[Page], say: Say
) -> list[str]:
    """The engine's answers to the pages, with the model's own weights or from a pack.

    Raises what `compare_pages` does.
    """
    words = "the pack" if isinstance(quantization, PackFolder) else "its own weights"
    model = settings.model.model_copy(update={"quantization": quantization})
    done = 0

    def answered() -> None:
        nonlocal done
        done += 1
        say(f"reading pages with {words}: {done} of {len(pages)}")

    with Engine.load(settings.model_copy(update={"model": model})) as engine:
        return ask(engine, pages, answered)
