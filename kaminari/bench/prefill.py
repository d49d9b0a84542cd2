"""The prefill suite: seconds from a prompt of text to its first token, by length.

Beside the floor stands what the operations predict from the shortest tier: a tier is only as honest as its
longest.
"""

from __future__ import annotations

import statistics

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import HF, LLAMA
from kaminari.bench.recorder import join_case
from kaminari.bench.result import OURS
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.timing import turns
from kaminari.bench.work import prompt_floor

WARM_TOKENS = 64
# the tier that longer ones are predicted from
FIRST_TIER = 2048


def run(bench: Bench) -> None:
    options, recorder, subject = bench.options, bench.recorder, bench.subject
    reference = bench.reference
    lengths = sorted(set(options.prompts))
    names = [OURS, *([HF] if reference is not None else [])]
    recorder.expect(options.rounds * len(names) * len(lengths))
    session = Session(subject.loaded, 1, lengths[-1] + 1, subject.loaded.info.prefill_chunk)
    for length in lengths:
        case = {"tokens": length}
        prompt = random_prompt(subject.loaded, length)
        warm = random_prompt(subject.loaded, min(WARM_TOKENS, length))
        bench.measure_limits()
        session.prefill(warm, 1)
        if reference is not None:
            reference.prefill(warm.token_ids)
        floor = prompt_floor(subject.work, length)
        for name in turns(names, options.rounds):
            recorder.starting(f"{name}: {join_case(case)}")
            row = recorder.row(name, case, floor=floor, amounts={"tokens": length})
            if name == OURS:
                row.samples.append(session.prefill(prompt, 1))
            elif reference is not None:
                row.samples.append(reference.prefill(prompt.token_ids))
            recorder.done(join_case(case))
        if bench.llama_cpp is not None:
            recorder.starting(f"{LLAMA}: {join_case(case)}")
            row = recorder.row(LLAMA, case, floor=floor, amounts={"tokens": length})
            row.samples += bench.llama_cpp.prefill(length, options.rounds)
        predict(bench, length)


def predict(bench: Bench, length: int) -> None:
    """Note how many times the prediction from the first tier a longer one took."""
    if length <= FIRST_TIER:
        return
    recorder, work = bench.recorder, bench.subject.work
    first, row = (recorder.row(OURS, {"tokens": tokens}) for tokens in (FIRST_TIER, length))
    if not first.samples or not row.samples:
        return
    ratio = work.prompt_operations(length) / work.prompt_operations(FIRST_TIER)
    predicted = statistics.median(first.samples) * ratio
    row.values["over_prediction"] = statistics.median(row.samples) / predicted
