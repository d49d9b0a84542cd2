"""The ladder: what each rung adds to the tokens per second, climbed in one run at one context.

A rung is a way to run the same decoder. Whoever builds another one adds it to `RUNGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kaminari.bench.bench import Bench
from kaminari.bench.decode import DYNAMIC, WARM_STEPS, Decoder, decoders, prompt_room, steps_of
from kaminari.bench.recorder import Case, join_case
from kaminari.bench.result import OURS
from kaminari.bench.subject import CasesError
from kaminari.bench.timing import turns
from kaminari.bench.work import step_floor


@dataclass(frozen=True, slots=True)
class Rung:
    """entrant:  whose decoder it is;  rows:  that it steps at once;  captured:  as in `Session`"""

    entrant: str
    rows: int
    shows: str
    captured: bool = True


RUNGS: Mapping[str, Rung] = {
    "eager": Rung(DYNAMIC, 1, "transformers as it is, one row"),
    "native": Rung(OURS, 1, "kaminari's own decoder and cache, one row", captured=False),
    "captured": Rung(OURS, 1, "the whole step as one call, one row"),
    "batched": Rung(OURS, 8, "eight rows in every step"),
}


def run(bench: Bench) -> None:
    options, recorder = bench.options, bench.recorder
    context = options.contexts[0]
    names = options.rungs or tuple(RUNGS)
    if bench.reference is None and any(RUNGS[name].entrant == DYNAMIC for name in names):
        raise CasesError("the rung eager is transformers: add --against hf, or name other rungs with --rungs")
    steps = steps_of(options)
    if context <= prompt_room(context, steps):
        raise CasesError(f"{steps} steps leave no room for a prompt in {context} tokens; make fewer")
    recorder.expect(options.rounds * len(names))
    climbing: list[tuple[str, Decoder]] = []
    for name in names:
        rung = RUNGS[name]
        entrants = decoders(bench, context, rung.rows, captured=rung.captured)
        entrant = next(each for each in entrants if each.name == rung.entrant)
        recorder.starting(f"{name}: filling {context} tokens")
        entrant.open(rung.rows)
        entrant.steps(WARM_STEPS)
        climbing.append((name, entrant))
    for name, entrant in turns(climbing, options.rounds):
        rung = RUNGS[name]
        case: Case = {"rung": name, "batch": rung.rows, "context": context}
        floor = step_floor(bench.subject.work, rung.rows, context - prompt_room(context, steps))
        row = recorder.row(entrant.name, case, floor=floor, amounts={"tokens": rung.rows})
        row.samples += entrant.steps(options.tokens)
        recorder.done(join_case(case))
