"""Steps that are compiled or captured, two in flight: every family keeps every promise as with eager ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kaminari.engine.answer import Choice
from kaminari.engine.answer_format import RegexFormat
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.events import Failed, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.model.kernels.native.build import native_kernels
from tests.engine.harness import (
    EAGER,
    HandLoop,
    Mode,
    Running,
    Sabotaged,
    cache_tensors,
    hand_loop,
    poison,
    quiet,
)
from tests.engine.prompts import BAD, PROMPTS, Answers, conversation
from tests.reference import Greedy, differing_tokens

pytestmark = [
    pytest.mark.on_device,
    pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"]),
]

TOKENS = 5
SHORT = SamplingParams(temperature=0.0, max_tokens=TOKENS)
LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
LETTER_A = 64
"""What the tokenizers of all families make of "a"."""

ASKED: tuple[tuple[str, SamplingParams, str | None], ...] = (
    ("two pictures", SamplingParams(temperature=0.0, max_tokens=9, logprobs=3), None),
    ("text", SamplingParams(seed=3, n=2, max_tokens=8, ignore_eos=True), None),
    ("picture", SamplingParams(temperature=0.8, seed=4, top_p=0.9, top_k=40, max_tokens=9, logprobs=0), None),
    ("system", SamplingParams(seed=5, min_p=0.02, repetition_penalty=1.5, max_tokens=9, logprobs=2), None),
    ("long text", SamplingParams(seed=6, frequency_penalty=1.0, presence_penalty=0.5, max_tokens=7), None),
    (
        "text",
        SamplingParams(temperature=0.0, logit_bias=((LETTER_A, 100.0),), stop=("aaa",), min_tokens=2),
        None,
    ),
    ("text", SamplingParams(temperature=0.0, stop_token_ids=tuple(range(128)), max_tokens=30), None),
    ("picture in an earlier turn", SamplingParams(seed=7, logprobs=5), "([0-9]{2}-){3}x"),
    ("big picture", SamplingParams(temperature=0.0, stop=("-",)), "[a-f]{5}-[a-f]{5}"),
)
"""Prompt, parameters, and the pattern that the answer is held to."""


@pytest.fixture(scope="module")
def eager_choices(checkpoint: Callable[[str], Path]) -> Callable[[str], list[list[Choice]]]:
    """What eager steps at depth 1 answer to each request that is alone."""

    def made(variant: str) -> list[list[Choice]]:
        engine = hand_loop(checkpoint(variant), mode=EAGER)
        choices = []
        for request in ASKED:
            running = ask(engine, *request)
            engine.run()
            choices.append(running.answer().choices)
        return choices

    return cache(made)


def ask(engine: HandLoop, name: str, params: SamplingParams, pattern: str | None) -> Running:
    form = None if pattern is None else RegexFormat(pattern)
    return engine.submit(Conversation(conversation(PROMPTS[name]).messages, answer_format=form), params)


def differs(running: Running, golden: Greedy) -> bool:
    """Whether an answer of `TOKENS` tokens is another than the reference begins with."""
    first = Greedy(golden.prompt_ids, golden.token_ids[:TOKENS], golden.gaps[:TOKENS])
    return bool(differing_tokens(running.token_ids(), first))


def compare(found: Choice, expected: Choice) -> None:
    """All of an answer is equal, but that log-probabilities may differ by rounding."""
    assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
    assert (found.reason, found.stop) == (expected.reason, expected.stop)
    assert len(found.logprobs) == len(expected.logprobs)
    for mine, other in zip(found.logprobs, expected.logprobs, strict=True):
        named, wanted = (mine.token, *mine.top), (other.token, *other.top)
        assert [each.token_id for each in named] == [each.token_id for each in wanted]
        assert [each.logprob for each in named] == pytest.approx([each.logprob for each in wanted], abs=1e-4)


def test_every_answer_is_that_of_eager_steps_without_company(
    variant: str,
    mode: Mode,
    checkpoint: Callable[[str], Path],
    eager_choices: Callable[[str], list[list[Choice]]],
) -> None:
    """Greedy and drawn, with grammars, penalties, log-probabilities and all that ends an answer."""
    engine = hand_loop(checkpoint(variant), slots=5, chunk=20)
    if engine.loaded.info.device == "cpu":
        captures = mode.captured and not mode.compiled and native_kernels().library is not None
        assert (1 in engine.loop.runner._graphs) == captures
    poison(engine.loop.runner.cache)
    running = []
    for request in ASKED:
        running.append(ask(engine, *request))
        engine.step(2)
    engine.run()
    for one, expected in zip(running, eager_choices(variant), strict=True):
        for found, wanted in zip(one.answer().choices, expected, strict=True):
            compare(found, wanted)
    a_stop, a_token, a_pattern, both = (choices[0] for choices in eager_choices(variant)[5:])
    assert (a_stop.text, a_stop.stop) == ("aa", "aaa")
    assert a_token.reason is FinishReason.STOP
    assert a_pattern.text.endswith("-x")
    assert len(both.text) == 5
    assert engine.is_clean()


@pytest.mark.parametrize("name", ["system", "two pictures"])
def test_who_leaves_at_any_tick_gives_the_slot_to_the_next_within_one_step_and_nothing_else(
    variant: str,
    name: str,
    mode: Mode,
    checkpoint: Callable[[str], Path],
    answers: Answers,
) -> None:
    engine = hand_loop(checkpoint(variant), slots=2, chunk=20)
    prompts = {each: engine.loaded.frontend.prepare(conversation(PROMPTS[each])) for each in PROMPTS}
    victim = engine.submit(prompts[name], SHORT)
    ticks = 0
    while not engine.loop.idle:
        engine.step()
        ticks += 1
    assert not differs(victim, answers(variant)[name])
    assert ticks > TOKENS
    scheduler = engine.loop.scheduler
    for tick in range(ticks + 1):
        neighbour = engine.submit(prompts["text"], SHORT)
        engine.step(2)
        victim = engine.submit(prompts[name], SHORT)
        engine.step(tick)
        held = [slot for slot, owner in scheduler.slots.owners() if owner.job == victim.id]
        victim.stream.abort()
        # whatever the aborted row still writes, or has written, is worthless to the next
        poison(engine.loop.runner.cache, held)
        engine.step()
        assert set(held) <= set(scheduler.slots._free), tick
        poison(engine.loop.runner.cache, held)
        followers = [engine.submit(prompts["picture"], SHORT) for _ in range(2)]
        engine.run()
        victim.drain()
        assert not any(isinstance(event, Failed) for event in victim.events)
        assert not differs(neighbour, answers(variant)["text"]), tick
        for follower in followers:
            assert not differs(follower, answers(variant)["picture"]), tick
        assert engine.is_clean()


def failed(running: Running) -> Failed:
    running.drain()
    assert isinstance(running.events[-1], Failed)
    return running.events[-1]


@pytest.fixture
def harmed(variant: str, mode: Mode, checkpoint: Callable[[str], Path]) -> tuple[HandLoop, Sabotaged]:
    engine = hand_loop(checkpoint(variant), slots=2, chunk=20, wrap=Sabotaged)
    assert isinstance(engine.loaded.model, Sabotaged)
    return engine, engine.loaded.model


def test_nan_at_any_tick_ends_its_request_alone_and_is_scrubbed(
    variant: str, harmed: tuple[HandLoop, Sabotaged], answers: Answers
) -> None:
    engine, model = harmed
    expected = answers(variant)
    for tick in range(1, 8):
        victim = engine.submit(conversation(PROMPTS["text"]), LONG)
        neighbour = engine.submit(conversation(PROMPTS["picture"]), SHORT)
        engine.step(tick)
        held = [slot for slot, owner in engine.loop.scheduler.slots.owners() if owner.job == victim.id]
        model.nan_slots = set(held)
        with quiet("kaminari.engine"):
            while not victim.events or not isinstance(victim.events[-1], Failed):
                engine.step()
                victim.drain()
        model.nan_slots = set()
        assert "not finite" in failed(victim).message
        assert not any(tensor[held].isnan().any() for tensor in cache_tensors(model.cache))
        again = engine.submit(conversation(PROMPTS["text"]), SHORT)
        engine.run()
        assert not differs(neighbour, expected["picture"]), tick
        assert not differs(again, expected["text"]), tick
        assert engine.is_clean()


def test_a_step_that_raises_at_any_tick_ends_its_rows_and_the_engine_goes_on(
    variant: str, harmed: tuple[HandLoop, Sabotaged], answers: Answers
) -> None:
    engine, model = harmed
    struck = set()
    for tick in range(9):
        batch = [engine.submit(conversation(PROMPTS[name]), SHORT) for name in ("text", "picture")]
        waiting = engine.submit(conversation(PROMPTS["system"]), SHORT)
        engine.step(tick)
        model.fail_next = RuntimeError("secret of the device")
        with quiet("kaminari.engine"):
            engine.run()
        assert model.fail_next is None
        names = []
        for name, running in (*zip(("text", "picture"), batch, strict=True), ("system", waiting)):
            running.drain()
            if isinstance(running.events[-1], Failed):
                assert "secret" not in failed(running).message
                names.append(name)
            else:
                assert not differs(running, answers(variant)[name]), tick
        struck.add(tuple(names))
        assert engine.is_clean()
    assert {("text",), ("picture",), ("text", "picture")} & struck
    assert () not in struck


def test_bad_input_is_refused_before_anything_is_queued(
    variant: str, mode: Mode, checkpoint: Callable[[str], Path], answers: Answers
) -> None:
    engine = hand_loop(checkpoint(variant), slots=2, context=200)
    running = engine.submit(conversation(PROMPTS["text"]), SHORT)
    for bad in BAD:
        engine.step()
        with pytest.raises(RequestError):
            engine.submit(bad)
        assert engine.loop.scheduler.waiting == 0
    engine.run()
    assert not differs(running, answers(variant)["text"])
    assert engine.is_clean()
