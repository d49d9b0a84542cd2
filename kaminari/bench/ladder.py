"""The ladder: what each rung adds to the tokens per second, climbed in one run at one context.

A rung is a way to run the same decoder. Whoever builds another one adds it to `RUNGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import DYNAMIC, Decoder, decoders, prompt_room, steps_of
from kaminari.bench.recorder import Case, Floor, join_case
from kaminari.bench.result import OURS
from kaminari.bench.subject import CasesError
from kaminari.bench.timing import turns
from kaminari.bench.variants import PLAIN, Form, Variants
from kaminari.bench.work import step_floor
from kaminari.config import PackFormat
from kaminari.engine.capacity import CapacityError
from kaminari.model.family import CheckpointError


@dataclass(frozen=True, slots=True)
class Rung:
    """entrant:  whose decoder it is;  rows:  that it steps at once;  form:  of the model;  captured:  as in
    `Session`"""

    entrant: str
    rows: int
    shows: str
    form: Form = PLAIN
    captured: bool = True


RUNGS: Mapping[str, Rung] = {
    "eager": Rung(DYNAMIC, 1, "transformers as it is, one row"),
    "native": Rung(OURS, 1, "kaminari's own decoder and cache, one row", captured=False),
    "compiled": Rung(OURS, 1, "the layers through torch.compile, one row", Form(compiled=True)),
    "captured": Rung(OURS, 1, "the whole step as one call, one row"),
    "int8": Rung(OURS, 1, "weights from an int8 pack, one row", Form(PackFormat.INT8)),
    "int4": Rung(OURS, 1, "weights from an int4 pack, one row", Form(PackFormat.INT4)),
    "batched": Rung(OURS, 8, "eight rows in every step"),
}


@dataclass(frozen=True, slots=True)
class _Climber:
    """A rung's decoder, filled and warm, and the floor of its steps."""

    name: str
    decoder: Decoder
    floor: Floor


def run(bench: Bench) -> None:
    """Climb the rungs that were asked for, or all that the model has.

    Raises `CasesError`, and for a rung that was asked for what `Variants.of` raises.
    """
    options, recorder = bench.options, bench.recorder
    context = options.contexts[0]
    names = options.rungs or tuple(RUNGS)
    if bench.reference is None and any(RUNGS[name].entrant == DYNAMIC for name in names):
        missing = "the rung eager is transformers: add --against hf"
        if options.rungs:
            raise CasesError(f"{missing}, or name other rungs with --rungs")
        recorder.note(missing)
        names = tuple(name for name in names if RUNGS[name].entrant != DYNAMIC)
    steps = steps_of(options)
    if context <= prompt_room(context, steps):
        raise CasesError(f"{steps} steps leave no room for a prompt in {context} tokens; make fewer")
    climbing = []
    with Variants(bench, options.pack) as variants:
        for name in names:
            try:
                climbing.append(_ready(variants.of(RUNGS[name].form), name, context))
            except (CheckpointError, CapacityError) as reason:
                if options.rungs:
                    raise
                recorder.note(f"no rung {name}: {reason}")
    recorder.expect(options.rounds * len(climbing))
    for climber in turns(climbing, options.rounds):
        rung = RUNGS[climber.name]
        case: Case = {"rung": climber.name, "batch": rung.rows, "context": context}
        row = recorder.row(climber.decoder.name, case, floor=climber.floor, amounts={"tokens": rung.rows})
        row.samples += climber.decoder.steps(options.tokens)
        recorder.done(join_case(case))


def _ready(bench: Bench, name: str, context: int) -> _Climber:
    rung = RUNGS[name]
    entrants = decoders(bench, context, rung.rows, captured=rung.captured)
    decoder = next(each for each in entrants if each.name == rung.entrant)
    bench.recorder.starting(f"{name}: filling {context} tokens")
    decoder.open(rung.rows)
    decoder.warm_up()
    room = prompt_room(context, steps_of(bench.options))
    return _Climber(name, decoder, step_floor(bench.subject.work, rung.rows, context - room))
