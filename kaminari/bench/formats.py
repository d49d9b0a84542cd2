"""Decodes for a few seconds in every format that a model has here, by threads and rows: what advice rests on.

Formats take turns one after the other, since each is loaded by itself: a machine that is busy for a part of
the time is unfair to one of them. `kaminari bench` measures in turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from kaminari.bench.advice import Rate
from kaminari.bench.session import Session, random_prompt
from kaminari.config import (
    EngineSettings,
    ModelSource,
    NoQuantization,
    PackFolder,
    PackFormat,
    Settings,
    StandardPack,
    standard_place,
)
from kaminari.engine.loading import load_model, plan_model
from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.packs.format import is_pack

ROWS = (16, 8, 4, 2, 1)
PROMPT = 192
MOST_STEPS = 16
FEWEST_STEPS = 3
VISITS = 2
"""How often each number of rows and threads is measured. The best counts: what else the machine does during
one visit is not the model's."""

Say = Callable[[str], None]


def formats_of(settings: Settings) -> dict[str, Settings]:
    """The settings for each format that the model can be served in here, the most precise first.

    They are its own weights, its packs in the standard place, and the pack that the settings name.
    """
    model = settings.model
    choices: list[NoQuantization | StandardPack | PackFolder] = [NoQuantization()]
    choices += [StandardPack(each) for each in PackFormat if _is_there(model.source, each)]
    if isinstance(model.quantization, PackFolder):
        choices.append(model.quantization)
    return {
        str(choice): settings.model_copy(update={"model": model.model_copy(update={"quantization": choice})})
        for choice in choices
    }


def missing_formats(settings: Settings) -> tuple[str, ...]:
    """The formats of which the model has no pack in the standard place."""
    source = settings.model.source
    return tuple(each.value for each in PackFormat if not _is_there(source, each))


def _is_there(source: ModelSource, pack: PackFormat) -> bool:
    folder = standard_place(source, pack)
    return folder.is_dir() and is_pack(folder)


@torch.inference_mode()
def measure(settings: Settings, name: str, seconds: float, say: Say) -> Iterator[Rate]:
    """Load one format and yield its rates, in about `seconds` besides loading it.

    Rows are as many as fit, up to 16; threads are one and what "auto" takes. Raises what `load_model` raises,
    and changes the thread count of this thread.
    """
    plan = plan_model(settings)
    rows = [count for count in ROWS if count <= plan.capacity.slots]
    prompt = min(PROMPT, plan.capacity.context // 2)
    say(f"{name}: loading")
    loaded = load_model(_sized(settings, rows[0]))
    threads = sorted({1, torch.get_num_threads()}) if plan.device.type == "cpu" else [torch.get_num_threads()]
    capacity = prompt + len(rows) * len(threads) * (MOST_STEPS + 1) + 1
    if capacity > plan.capacity.context:
        raise ValueError(f"a context of {plan.capacity.context} tokens is too short to measure in")
    session = Session(loaded, rows[0], capacity, loaded.info.prefill_chunk)
    say(f"{name}: reading a prompt")
    tokens = random_prompt(loaded, prompt)
    share = seconds / (VISITS * len(rows) * len(threads))
    best: dict[tuple[int, int], float] = {}
    for _ in range(VISITS):
        session.prefill(tokens, rows[0])
        for count in rows:
            session.narrow(count)
            for number in threads:
                say(f"{name}: {count} rows, {number} threads")
                torch.set_num_threads(number)
                step = _step(session, tokens, count, share)
                best[count, number] = min(step, best.get((count, number), step))
    for (count, number), step in best.items():
        yield Rate(name, number, count, count / step)
    del session, loaded
    gc.collect()


def _step(session: Session, prompt: PreparedPrompt, rows: int, seconds: float) -> float:
    """The median seconds of a step, over as many steps as the time allows.

    Where `MOST_STEPS` take less than half of it, the rows begin again behind the prompt, and never grow long.
    """
    samples: list[float] = []
    began = time.perf_counter()
    while True:
        session.steps(1)
        for _ in range(MOST_STEPS):
            samples += session.steps(1)
            if len(samples) >= FEWEST_STEPS and time.perf_counter() - began >= seconds:
                return statistics.median(samples)
        if 2 * (time.perf_counter() - began) >= seconds:
            return statistics.median(samples)
        session.prefill(prompt, rows)


def _sized(settings: Settings, slots: int) -> Settings:
    """Load with no more slots than are measured."""
    engine = dict(settings.engine) | {"slots": slots, "max_choices": slots}
    return settings.model_copy(update={"engine": EngineSettings.model_validate(engine)})
