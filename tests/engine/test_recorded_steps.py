"""On a CPU a recorded decode step is the unrecorded one, bit for bit, in every family and company."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kaminari.engine.drawn import DrawnToken, Undrawn
from kaminari.engine.events import Failed
from kaminari.engine.loop import FAULT, NOT_FINITE
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import DecodeRow, PrefillChunk
from kaminari.engine.step_block import Block
from kaminari.engine.step_graphs import Launched, ProgramRecorder
from kaminari.model.family import LoadOptions, VisionLanguageModel, find_family
from kaminari.model.kernels.native.build import allow_native, native_kernels
from kaminari.model.kernels.native.program import Ticket
from kaminari.model.packs.writing import Recipe
from tests.engine.harness import HandLoop, Mode, cache_tensors, hand_loop, poison, quiet
from tests.model.packs.packs import INT4, INT8_HEAD, load_packed, pack_of, reopened
from tests.model.steps import CPU

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)

CONTEXT = 300
SLOTS = 5
VOCAB = 60
GREEDY = SamplingParams(temperature=0.0)
FAMILIES = ["tied-grouped", "untied-grouped", "qwen3_5", "minicpm_v"]
needs_vectors = pytest.mark.skipif(
    native_kernels().level == "portable", reason="torch multiplies by bfloat16 weights there"
)


def plain(folder: Path, dtype: torch.dtype) -> VisionLanguageModel:
    with torch.inference_mode():
        return find_family(folder).load(folder, LoadOptions(CPU, dtype, dtype))


@torch.inference_mode()
def begin(runner: Runner, job: int, slot: int, length: int, params: SamplingParams) -> None:
    """Fill a prompt of its own into a slot, and draw its first token."""
    chance = np.random.default_rng(job)
    ids = tuple(int(token) for token in chance.integers(0, VOCAB, length))
    # as behind a picture, positions lag behind the count of tokens
    prompt = PreparedPrompt(ids, np.tile(np.arange(length), (3, 1)), -min(job, length))
    runner.add(job, prompt, params, 0, [None])
    undrawn = runner.prefill(PrefillChunk(job, (slot,), 0, length, last=True))
    assert undrawn is not None
    runner.draw(undrawn, undrawn.rows)


class Rows:
    """A runner with jobs of one choice each, whose decode steps a test composes.

    Every job goes on from a token of its own at every step, the same for every runner.
    """

    def __init__(self, model: VisionLanguageModel, *, recorded: bool, slots: int = SLOTS) -> None:
        self.runner = Runner(model, slots, CONTEXT, frozenset())
        poison(self.runner.cache)
        if recorded:
            with torch.inference_mode():
                self.runner.capture()
        self.lengths: dict[int, int] = {}
        self.slots: dict[int, int] = {}

    def begin(self, job: int, slot: int, length: int, params: SamplingParams = GREEDY) -> None:
        begin(self.runner, job, slot, length, params)
        self.lengths[job], self.slots[job] = length, slot

    def step(self, *jobs: int) -> Tensor:
        """Logits of a step that is drawn from."""
        return self.drawn(1, *jobs)[0].logits.clone()

    @torch.inference_mode()
    def drawn(self, index: int, *jobs: int) -> tuple[Undrawn, list[DrawnToken]]:
        """A step, and the tokens of this number that it drew."""
        rows = [DecodeRow(job, 0, self.slots[job], self.lengths[job], index) for job in jobs]
        undrawn = self.runner.decode(rows)
        tokens = self.runner.draw(undrawn, undrawn.rows).collect()
        for job in jobs:
            self.lengths[job] += 1
        return undrawn, tokens


def script(rows: Rows) -> list[Tensor]:
    """Rows of every number and in any order, over the border of a segment of keys, in slots used before."""
    rows.begin(1, slot=3, length=254)
    rows.begin(2, slot=0, length=3)
    found = [rows.step(1), rows.step(2, 1), rows.step(1, 2), rows.step(1)]
    rows.begin(3, slot=4, length=17)
    found += [rows.step(3, 2, 1), rows.step(1, 3), rows.step(2)]
    rows.runner.forget(2)
    poison(rows.runner.cache, [0, 1, 2])
    rows.begin(4, slot=0, length=1)
    rows.begin(5, slot=1, length=40)
    rows.begin(6, slot=2, length=255)
    found += [rows.step(6, 5, 4, 3, 1), rows.step(1, 3, 4, 5, 6), rows.step(4, 6, 3, 1)]
    return found


def compare(model: VisionLanguageModel) -> None:
    recorded, unrecorded = Rows(model, recorded=True), Rows(model, recorded=False)
    assert all(count in recorded.runner._graphs for count in range(1, SLOTS + 1))
    assert 1 not in unrecorded.runner._graphs
    for number, (found, expected) in enumerate(zip(script(recorded), script(unrecorded), strict=True)):
        assert found.isfinite().all()
        assert torch.equal(found, expected), number
    caches = (cache_tensors(each.runner.cache) for each in (recorded, unrecorded))
    for ours, theirs in zip(*caches, strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_vectors)])
def test_recorded_steps_are_the_unrecorded_ones(
    variant: str, dtype: torch.dtype, checkpoint: Callable[[str], Path]
) -> None:
    compare(plain(checkpoint(variant), dtype))


@needs_vectors
@pytest.mark.parametrize("variant", ["tied-grouped", "minicpm_v"])
@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4], ids=["int8", "int4"])
def test_steps_over_packs_are_recorded_too(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    pack_of(folder, recipe, tmp_path / "pack")
    with torch.inference_mode():
        model = load_packed(folder, reopened(folder, tmp_path / "pack"), torch.bfloat16)
    compare(model)


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_may_change_between_recording_and_replay(
    variant: str, threads: int, checkpoint: Callable[[str], Path]
) -> None:
    model = plain(checkpoint(variant), torch.float32)
    recorded, unrecorded = Rows(model, recorded=True), Rows(model, recorded=False)
    expected = script(unrecorded)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = script(recorded)
    finally:
        torch.set_num_threads(before)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        # torch's own GEMM in the prefill may sum in another order with other threads
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4), number


def test_steps_of_more_rows_than_are_recorded_run_all_the_same(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = plain(tiny_checkpoint, torch.float32)
    unrecorded = Rows(model, recorded=False)
    monkeypatch.setattr(ProgramRecorder, "most_rows", 2)
    recorded = Rows(model, recorded=True)
    assert 2 in recorded.runner._graphs
    assert 3 not in recorded.runner._graphs
    assert all(torch.equal(*pair) for pair in zip(script(recorded), script(unrecorded), strict=True))


@needs_vectors
@pytest.mark.parametrize("variant", ["tied-grouped", "minicpm_v"])
def test_steps_of_many_rows(variant: str, checkpoint: Callable[[str], Path]) -> None:
    """Up to the last number that is recorded, and unrecorded, a row's logits are those that it has alone."""
    most = ProgramRecorder.most_rows
    model = plain(checkpoint(variant), torch.bfloat16)
    recorded, unrecorded = (Rows(model, recorded=each, slots=most + 1) for each in (True, False))
    assert most in recorded.runner._graphs
    assert most + 1 not in recorded.runner._graphs
    alone = Rows(model, recorded=False, slots=1)
    alone.begin(0, slot=0, length=1)
    for rows in (recorded, unrecorded):
        for job in range(most + 1):
            rows.begin(job, slot=most - job, length=1 + 7 * job)
    for count in (17, most - 1, most, most + 1):
        jobs = range(count)
        found, expected = recorded.step(*jobs), unrecorded.step(*jobs)
        assert torch.equal(found, expected), count
        if count <= most:
            assert torch.equal(found[0], alone.step(0)[0]), count


def test_logits_stay_until_as_many_rows_run_again(tiny_checkpoint: Path) -> None:
    rows = Rows(plain(tiny_checkpoint, torch.float32), recorded=True)
    rows.begin(1, slot=0, length=4)
    rows.begin(2, slot=1, length=9)
    with torch.inference_mode():
        undrawn = rows.runner.decode([DecodeRow(1, 0, 0, 4, 1)])
        before = undrawn.logits.clone()
    rows.lengths[1] += 1
    rows.step(2, 1)
    assert torch.equal(undrawn.logits, before)


def test_recording_leaves_the_slots_for_new_owners(checkpoint: Callable[[str], Path]) -> None:
    """A recurrent state and its length are those of an empty slot."""
    runner = Rows(plain(checkpoint("qwen3_5"), torch.float32), recorded=True).runner
    for layer in runner.cache.layers:
        for slot in range(SLOTS):
            layer.check_start(slot, 0)


@pytest.mark.parametrize("why", ["kernels", "heads"])
def test_what_torch_computes_is_not_recorded(
    why: str, checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Without native kernels nothing tries; with heads that they were not made for, a line says why."""
    folder = checkpoint("untied-wide" if why == "heads" else "tied-grouped")
    allow_native(why != "kernels")
    try:
        with caplog.at_level(logging.INFO):
            rows = Rows(plain(folder, torch.float32), recorded=True)
    finally:
        allow_native(True)
    assert 1 not in rows.runner._graphs
    assert ("decode steps are not recorded: aten" in caplog.text) == (why == "heads")
    rows.begin(1, slot=0, length=4)
    assert rows.step(1).isfinite().all()


def test_a_row_that_does_not_fit_is_refused_before_the_replay(checkpoint: Callable[[str], Path]) -> None:
    rows = Rows(plain(checkpoint("qwen3_5"), torch.float32), recorded=True)
    rows.begin(1, slot=0, length=4)
    before = [tensor.clone() for tensor in cache_tensors(rows.runner.cache)]
    for job_slot, cached, message in ((7, 4, "no slot 7"), (0, 5, "cannot go on at 5"), (0, CONTEXT, "fit")):
        with torch.inference_mode(), pytest.raises(ValueError, match=message):
            rows.runner.decode([DecodeRow(1, 0, job_slot, cached, 1)])
    after = cache_tensors(rows.runner.cache)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))


def test_a_token_that_is_none_is_an_error_and_the_next_step_is_not(tiny_checkpoint: Path) -> None:
    """What fails inside a replay is raised as it would be outside."""
    rows, other = (Rows(plain(tiny_checkpoint, torch.float32), recorded=each) for each in (True, False))
    for each in (rows, other):
        each.begin(1, slot=0, length=4)
        kept = each.runner._last_tokens.clone()
        each.runner._last_tokens[0] = 10**9
        with pytest.raises(ValueError, match=r"kaminari_pick|are not among"):
            each.step(1)
        each.runner._last_tokens.copy_(kept)
    assert torch.equal(rows.step(1), other.step(1))


@pytest.mark.usefixtures("depth")
def test_an_engine_with_recorded_steps_answers_as_one_without(
    checkpoint: Callable[[str], Path],
) -> None:
    def tokens(recorded: bool) -> Sequence[tuple[int, ...]]:
        engine = hand_loop(checkpoint("minicpm_v"), slots=3)
        if recorded:
            with torch.inference_mode():
                engine.loop.runner.warm_up()
            assert 3 in engine.loop.runner._graphs
        poison(engine.loop.runner.cache)
        asked = [
            engine.submit(
                PreparedPrompt(tuple(range(3, 3 + length)), np.tile(np.arange(length), (3, 1)), 0), params
            )
            for length, params in (
                (30, SamplingParams(temperature=0, max_tokens=9)),
                (5, SamplingParams(temperature=1, seed=3, max_tokens=14)),
                (80, SamplingParams(temperature=0.5, seed=1, max_tokens=6)),
                (12, SamplingParams(temperature=0, max_tokens=8)),
            )
        ]
        engine.step(6)
        asked[1].stream.abort()
        engine.run()
        assert engine.is_clean()
        return [one.token_ids() for one in (asked[0], *asked[2:])]

    assert tokens(True) == tokens(False)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("params", "itself"),
    [
        (GREEDY, True),
        (SamplingParams(temperature=0.7, top_p=0.8, top_k=20, seed=1), True),
        (SamplingParams(min_p=0.1, seed=1), True),
        (SamplingParams(temperature=0, presence_penalty=1.5), True),
        (SamplingParams(seed=4, logit_bias=((3, 5.0),), min_tokens=4), True),
        (SamplingParams(temperature=0, logprobs=0), False),
    ],
)
def test_a_step_draws_for_its_rows_itself(
    params: SamplingParams, itself: bool, recorded: bool, tiny_checkpoint: Path
) -> None:
    """Unless one asks for more than a token: then the sampler draws for all of them, and draws the same."""
    alone = Rows(plain(tiny_checkpoint, torch.float32), recorded=recorded)
    mixed = Rows(plain(tiny_checkpoint, torch.float32), recorded=recorded)
    for rows in (alone, mixed):
        rows.begin(1, slot=2, length=9, params=params)
    mixed.begin(2, slot=0, length=5, params=SamplingParams(temperature=0, logprobs=3))
    for index in range(1, 9):
        undrawn, token = alone.drawn(index, 1)
        assert (undrawn.ids is not None) is itself
        assert token[0].token == mixed.drawn(index, 1, 2)[1][0].token


def recorded_loop(folder: Path, depth: int = 2) -> HandLoop:
    engine = hand_loop(folder, slots=3, mode=Mode(depth, captured=True))
    assert 3 in engine.loop.runner._graphs
    return engine


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_ends_its_rows_and_the_engine_goes_on(
    depth: int, tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = recorded_loop(tiny_checkpoint, depth)
    whole = engine.submit(prompt(5, 40))
    engine.run()
    struck = [engine.submit(prompt(seed, 10 + seed)) for seed in (1, 2)]
    engine.step(5)
    waiting = engine.submit(prompt(5, 40))
    run = engine.loop.runner._graphs.run

    def spoil(block: Block) -> Launched:
        block[0] = 10**9
        monkeypatch.setattr(engine.loop.runner._graphs, "run", run)
        return run(block)

    monkeypatch.setattr(engine.loop.runner._graphs, "run", spoil)
    engine.step(1)
    engine.run()
    for one in struck:
        one.drain()
        assert one.events[-1] == Failed(FAULT)
    assert "kaminari_pick: the step's rows do not fit" in caplog.text
    assert waiting.token_ids() == whole.token_ids()
    assert engine.is_clean()
    assert all(tensor.isfinite().all() for tensor in cache_tensors(engine.loop.runner.cache))


def test_a_row_that_fails_is_scrubbed_once_the_step_beside_it_is_over(
    tiny_checkpoint: Path,
) -> None:
    """At depth 2 the next step, with the same row, runs already when a token turns out to be none."""
    alone = recorded_loop(tiny_checkpoint)
    expected = alone.submit(prompt(2, 30))
    alone.run()
    engine = recorded_loop(tiny_checkpoint)
    struck, neighbour = engine.submit(prompt(1, 20)), engine.submit(prompt(2, 30))
    engine.step(4)
    slot = next(slot for slot, owner in engine.loop.scheduler.slots.owners() if owner.job == struck.id)
    poison(engine.loop.runner.cache, [slot])
    with quiet("kaminari.engine"):
        engine.step(2)
    struck.drain()
    assert struck.events[-1] == Failed(NOT_FINITE)
    assert all(not tensor[slot].any() for tensor in cache_tensors(engine.loop.runner.cache))
    engine.run()
    assert neighbour.token_ids() == expected.token_ids()
    assert engine.is_clean()


def test_what_was_launched_can_be_waited_for_without_its_tokens(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a step whose rows were all over before they drew, whose slots may then have new owners."""
    runner = recorded_loop(tiny_checkpoint).loop.runner
    begin(runner, 1, slot=0, length=6, params=GREEDY)
    with torch.inference_mode():
        undrawn = runner.decode([DecodeRow(1, 0, 0, 6, 1)])
    wait = runner.mark()
    assert wait is not None
    wait()
    assert isinstance(undrawn.ids, Ticket)
    monkeypatch.setattr(undrawn.ids._worker, "_wait", None)
    assert len(undrawn.ids.collect()) == 1


def test_a_step_whose_rows_all_end_meanwhile_is_waited_for(tiny_checkpoint: Path) -> None:
    engine = recorded_loop(tiny_checkpoint)
    first = engine.submit(prompt(1, 20))
    engine.run()
    stop = first.token_ids()[3]
    begin = first.token_ids().index(stop)
    ended = engine.submit(prompt(1, 20), SamplingParams(temperature=0, stop_token_ids=(stop,), max_tokens=50))
    engine.run()
    assert ended.token_ids() == first.token_ids()[: begin + 1]
    again = engine.submit(prompt(1, 20))
    engine.run()
    assert again.token_ids() == first.token_ids()


def prompt(seed: int, length: int) -> PreparedPrompt:
    ids = np.random.default_rng(seed).integers(0, VOCAB, length)
    return PreparedPrompt(tuple(int(token) for token in ids), np.tile(np.arange(length), (3, 1)), 0)
