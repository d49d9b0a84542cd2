"""kaminari and `transformers` do the same work: the same tokens at the same places, however rows are cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kaminari.bench import decode, prefill, vision
from kaminari.bench.decoders import (
    DYNAMIC,
    READING_ALONE,
    STATIC,
    OwnDecoder,
    ReferenceDecoder,
    decoders,
    prompt_room,
    steps_of,
)
from kaminari.bench.limits import Memory
from kaminari.bench.llama_cpp import PeerError
from kaminari.bench.options import Options
from kaminari.bench.result import OURS
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.subject import CasesError
from tests.bench.harness import LIMITS, bench_of

OPTIONS = Options(rounds=2, tokens=2, batches=(1, 3), contexts=(128,), prompts=(40, 70), hf=True)


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
def test_every_entrant_makes_the_same_tokens(checkpoint: Callable[[str], Path], variant: str) -> None:
    bench = bench_of(checkpoint(variant), OPTIONS)
    made = {}
    for entrant in decoders(bench, 128, 3):
        entrant.open(3)
        assert len(entrant.steps(4)) == 4
        entrant.narrow(2)
        assert len(entrant.steps(3)) == 3
        if isinstance(entrant, OwnDecoder):
            rows = list(entrant.tokens.values())
            # the prompt itself draws the first of them
            assert {len(row) for row in rows} == {1 + 5 + 4}
        else:
            assert isinstance(entrant, ReferenceDecoder)
            rows = entrant.ids[:, -9:].tolist()
        made[entrant.name] = rows
    assert set(made) >= {OURS, DYNAMIC}
    assert (STATIC in made) == (variant == "tied-grouped")
    for name, rows in made.items():
        assert len(rows) == 2
        assert [row[:9] for row in rows] == [row[:9] for row in made[OURS]], name


def test_reading_alone_reads_what_a_step_reads(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dataclasses.replace(OPTIONS, hf=False, reading=True)
    bench = bench_of(tiny_checkpoint, options)
    read: list[int] = []
    monkeypatch.setattr(Memory, "read", lambda memory, count: read.append(count))
    decode.run(bench)
    figures = bench.recorder.figures(LIMITS)
    assert {figure.entrant for figure in figures} == {OURS, READING_ALONE}
    assert all((figure.floor is None) == (figure.entrant == READING_ALONE) for figure in figures)
    length = 128 - prompt_room(128, steps_of(options))
    assert set(read) == {bench.subject.work.step_bytes(rows, length) for rows in (1, 3)}


@pytest.mark.parametrize("count", [0, 2048, 5000, 1 << 20, (5 << 20) + 2048])
def test_memory_is_read_over_and_over(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(torch.device("cpu"), torch.bfloat16, 1 << 21)
    assert memory.size == 1 << 21
    assert memory.best_seconds() > 0
    read: list[int] = []
    monkeypatch.setattr(memory, "_ways", (lambda part: read.append(part.nbytes),))
    memory.read(count)
    assert sum(read) == count // 2048 * 2048


def test_the_decode_suite_measures_every_case(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, OPTIONS)
    decode.run(bench)
    figures = bench.recorder.figures(LIMITS)
    assert {(figure.entrant, figure.case["batch"]) for figure in figures} == {
        (name, batch) for name in (OURS, DYNAMIC, STATIC) for batch in (1, 3)
    }
    for figure in figures:
        assert figure.seconds.count == OPTIONS.rounds * OPTIONS.tokens
        batch = figure.case["batch"]
        assert isinstance(batch, int)
        assert figure.values["tokens_per_second"] == pytest.approx(batch / figure.seconds.median)
        assert figure.floor is not None
        assert figure.floor > 0


def test_steps_that_leave_no_prompt_are_refused(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, Options(rounds=20, tokens=8, contexts=(128,)))
    with pytest.raises(CasesError, match="184 steps leave no room for a prompt in 128 tokens"):
        decode.run(bench)


def test_a_context_is_used_to_its_end(tiny_checkpoint: Path) -> None:
    tight = Options(rounds=13, tokens=4, batches=(1,), contexts=(128,))
    assert prompt_room(128, steps_of(tight)) == steps_of(tight)
    bench = bench_of(tiny_checkpoint, tight, context=128)
    decode.run(bench)
    (figure,) = bench.recorder.figures(LIMITS)
    assert figure.seconds.count == 13 * 4


def test_full_slots_are_told(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, Options())
    session = Session(bench.subject.loaded, 1, 40, 40)
    session.prefill(random_prompt(bench.subject.loaded, 36), 1)
    session.steps(3)
    with pytest.raises(ValueError, match="no more than 40 tokens"):
        session.steps(1)


def test_the_prefill_suite_takes_turns(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, OPTIONS)
    prefill.run(bench)
    figures = bench.recorder.figures(LIMITS)
    assert {figure.case["tokens"] for figure in figures} == {40, 70}
    assert {figure.entrant for figure in figures} == {OURS, "hf"}
    assert {figure.seconds.count for figure in figures} == {2}


def test_longer_tiers_are_held_to_the_prediction(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "FIRST_TIER", 40)
    bench = bench_of(tiny_checkpoint, Options(rounds=1, prompts=(40, 70)))
    prefill.run(bench)
    first, longer = (figure for figure in bench.recorder.figures(LIMITS))
    work = bench.subject.work
    predicted = first.seconds.median * work.prompt_operations(70) / work.prompt_operations(40)
    assert "over_prediction" not in first.values
    assert longer.values["over_prediction"] == pytest.approx(longer.seconds.median / predicted)


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
def test_the_vision_suite_gives_both_the_same_patches(
    checkpoint: Callable[[str], Path], variant: str
) -> None:
    # a picture of 4 tokens is not sliced: older references take all slices to be of one size
    bench = bench_of(checkpoint(variant), Options(rounds=1, pictures=(4,), hf=True))
    vision.run(bench)
    ours, theirs = bench.recorder.figures(LIMITS)
    assert (ours.entrant, theirs.entrant) == (OURS, "hf")
    assert ours.case == theirs.case
    tokens = ours.case["tokens"]
    assert isinstance(tokens, int)
    assert 1 <= tokens <= 4
    assert ours.floor is not None


def test_other_patches_are_refused(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tiny_checkpoint, Options(rounds=1, pictures=(12,), hf=True))
    assert bench.reference is not None
    monkeypatch.setattr(bench.reference, "patches", lambda inputs: 3)
    with pytest.raises(PeerError, match="transformers cuts the picture into 3 patches"):
        vision.run(bench)


def test_a_picture_that_is_asked_for_and_too_large_is_refused() -> None:
    from kaminari.engine.loading import DEMO_FOLDER
    from kaminari.model.family import find_family

    prompt_format = find_family(DEMO_FOLDER).prompt_format(DEMO_FOLDER)
    bench = bench_of(DEMO_FOLDER, Options(pictures=(512, 1024)))
    found = vision.pictures(bench, prompt_format)
    assert len(found) == 1
    assert len(bench.recorder.notes) == 2
    asked = bench_of(DEMO_FOLDER, Options(pictures=(512,), asked=frozenset({"pictures"})))
    with pytest.raises(CasesError, match="where 512 are allowed"):
        vision.pictures(asked, prompt_format)
    with pytest.raises(CasesError, match="no picture of 1 tokens"):
        vision.picture_of(prompt_format, 1)
