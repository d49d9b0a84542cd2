"""The decode suite: seconds per step by batch and context, for rows that grow towards the context.

All entrants stand at the same length and take turns of a few steps. A prompt is filled in once per context;
of its rows fewer and fewer go on.
"""

from __future__ import annotations

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import decoders, prompt_room, steps_of
from kaminari.bench.recorder import join_case
from kaminari.bench.subject import CasesError
from kaminari.bench.timing import turns
from kaminari.bench.work import step_floor


def run(bench: Bench) -> None:
    options = bench.options
    batches = sorted(set(options.batches), reverse=True)
    room = steps_of(options)
    for context in options.contexts:
        if context <= prompt_room(context, room):
            raise CasesError(f"{room} steps leave no room for a prompt in {context} tokens; make fewer")
    for context in options.contexts:
        measure_context(bench, context, batches)


def measure_context(bench: Bench, context: int, batches: list[int]) -> None:
    """All batch sizes at one context, the largest first."""
    options, recorder = bench.options, bench.recorder
    entrants = decoders(bench, context, batches[0])
    recorder.expect(options.rounds * len(entrants) * len(batches))
    needed = steps_of(options)
    room = prompt_room(context, needed)
    used = room
    for batch in batches:
        case = {"batch": batch, "context": context}
        fresh = used + needed > room
        bench.measure_limits()
        for entrant in entrants:
            recorder.starting(f"{entrant.name}: filling {context} tokens" if fresh else join_case(case))
            entrant.open(batch) if fresh else entrant.narrow(batch)
            entrant.warm_up()
        used = needed if fresh else used + needed
        for entrant in turns(entrants, options.rounds):
            floor = None if entrant.work is None else step_floor(entrant.work, batch, context - room)
            row = recorder.row(entrant.name, case, floor=floor, amounts={"tokens": batch})
            row.samples += entrant.steps(options.tokens)
            recorder.done(join_case(case))
