"""Decodes for a few seconds in every format that a model has here, by threads and rows: what advice rests on.

Formats come one after the other, since each is loaded by itself: a machine that is busy for a part of the
time is unfair to one of them. `kaminari bench` measures in turns.
"""

from __future__ import annotations

import gc
import itertools
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
from kaminari.model.packs.format import is_pack

ROWS = (16, 8, 4, 2, 1)
PROMPT = 64
FEWEST_ROUNDS = 3
FEWEST_STEPS = 2
MOST_STEPS = 16
VISIT_SECONDS = 0.1
"""A visit to one number of rows and threads: many short ones in turn see more of what the machine does at
times than a few long ones."""

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

    Rows are as many as fit, up to 16; threads are one and what the engine takes. They take turns, in at least
    `FEWEST_ROUNDS` rounds. Raises what `load_model` raises, and changes the thread count of this thread.
    """
    plan = plan_model(settings)
    rows = [count for count in ROWS if count <= plan.capacity.slots]
    prompt = min(PROMPT, plan.capacity.context // 2)
    say(f"{name}: loading")
    loaded = load_model(_sized(settings, rows[0]))
    usual = torch.get_num_threads()
    threads = sorted({1, usual}) if plan.device.type == "cpu" else [usual]
    capacity = prompt + len(rows) * len(threads) * (MOST_STEPS + 1) + 1
    if capacity > plan.capacity.context:
        raise ValueError(f"a context of {plan.capacity.context} tokens is too short to measure in")
    session = Session(loaded, rows[0], capacity, loaded.info.prefill_chunk)
    tokens = random_prompt(loaded, prompt)
    visits: dict[tuple[int, int], list[float]] = {}
    began = time.perf_counter()
    for turn in itertools.count(1):
        say(f"{name}: round {turn}")
        session.prefill(tokens, rows[0])
        for count in rows:
            session.narrow(count)
            for number in threads if turn % 2 else reversed(threads):
                torch.set_num_threads(number)
                visits.setdefault((count, number), []).append(count / _step(session))
        if turn >= FEWEST_ROUNDS and time.perf_counter() - began >= seconds:
            break
    for (count, number), rates in sorted(visits.items(), key=lambda each: (-each[0][0], each[0][1])):
        yield Rate(name, number, count, tuple(rates), number == usual)
    del session, loaded
    gc.collect()


def _step(session: Session) -> float:
    """The median seconds of a step, over one visit."""
    session.steps(1)
    samples: list[float] = []
    began = time.perf_counter()
    while len(samples) < FEWEST_STEPS or time.perf_counter() - began < VISIT_SECONDS:
        samples += session.steps(1)
        if len(samples) == MOST_STEPS:
            break
    return statistics.median(samples)


def _sized(settings: Settings, slots: int) -> Settings:
    """Load with no more slots than are measured."""
    engine = dict(settings.engine) | {"slots": slots, "max_choices": slots}
    return settings.model_copy(update={"engine": EngineSettings.model_validate(engine)})
