"""The loop with a real tiny model: the reference's tokens in every company, and nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kaminari.engine.conversation import Conversation, Message, PicturePart, Role, TextPart
from kaminari.engine.errors import EngineFault, RequestError
from kaminari.engine.events import ChoiceFinished, Delta, Failed, Finished, FinishReason
from kaminari.engine.params import SamplingParams
from tests.engine.harness import HandLoop, Mode, Sabotaged, hand_loop, picture, poison, quiet
from tests.reference import Greedy, Reference, differing_tokens, reference_greedy

VARIANTS = ("tied-grouped", "untied-grouped", "tied-ungrouped", "untied-wide", "sharded")
TOKENS = 12
pytestmark = [pytest.mark.on_device, pytest.mark.usefixtures("mode")]

BAD = (
    Conversation(()),
    Conversation.ask("word " * 600),
    Conversation.ask("Read.", b"no picture"),
    Conversation.ask("Read.", *[picture(256, 256, seed) for seed in range(9)]),
)

Turns = list[tuple[str, list[str | Image.Image]]]

PROMPTS: dict[str, Turns] = {
    "text": [("user", ["Hello, who are you?"])],
    "long text": [("user", ["one two three four five six seven " * 12])],
    "system": [("system", ["Be brief."]), ("user", ["What is 3+4?"])],
    "picture": [("user", [picture(96, 64, 1), "What is it?"])],
    "text around a picture": [("user", ["First: ", picture(70, 130, 2), " and then?"])],
    "two pictures": [("user", [picture(64, 64, 3), "or", picture(160, 40, 4), "?"])],
    "picture in an earlier turn": [
        ("user", [picture(128, 96, 5), "Read."]),
        ("assistant", ["It says 12."]),
        ("user", ["Are you sure?"]),
    ],
    "big picture": [("user", [picture(256, 256, 6), "Describe."])],
}


def conversation(turns: Turns) -> Conversation:
    return Conversation(
        tuple(
            Message(Role(role), tuple(TextPart(p) if isinstance(p, str) else PicturePart(p) for p in parts))
            for role, parts in turns
        )
    )


def golden_answer(reference: Reference, turns: Turns, tokens: int = TOKENS) -> Greedy:
    images = [part for _, parts in turns for part in parts if not isinstance(part, str)]
    messages: list[dict[str, Any]] = []
    for role, parts in turns:
        content: Any = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts
        ]
        if all(isinstance(part, str) for part in parts):
            content = "".join(str(part) for part in parts)
        messages.append({"role": role, "content": content})
    return reference_greedy(reference, reference.render(messages), images, max_tokens=tokens)


@pytest.fixture(scope="module")
def answers(golden: Callable[[str], Reference]) -> Callable[[str], dict[str, Greedy]]:
    """The reference's greedy answers to every prompt, by variant; made once."""
    made: dict[str, dict[str, Greedy]] = {}

    def of(variant: str) -> dict[str, Greedy]:
        if variant not in made:
            made[variant] = {name: golden_answer(golden(variant), turns) for name, turns in PROMPTS.items()}
        return made[variant]

    return of


def check(token_ids: dict[str, tuple[int, ...]], expected: dict[str, Greedy]) -> None:
    wrong = {name: ids for name, ids in token_ids.items() if differing_tokens(ids, expected[name])}
    assert not wrong


@pytest.mark.parametrize("variant", VARIANTS)
def test_alone_each_prompt_gets_the_references_tokens(
    variant: str, checkpoint: Callable[[str], Path], answers: Callable[[str], dict[str, Greedy]]
) -> None:
    engine = hand_loop(checkpoint(variant), slots=1)
    ours = {}
    for name, turns in PROMPTS.items():
        prompt = engine.loaded.frontend.prepare(conversation(turns))
        assert prompt.token_ids == answers(variant)[name].prompt_ids
        running = engine.submit(prompt)
        engine.run()
        ours[name] = running.token_ids()
    check(ours, answers(variant))
    assert engine.is_clean()


@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_change_no_token(
    variant: str,
    slots: int,
    checkpoint: Callable[[str], Path],
    answers: Callable[[str], dict[str, Greedy]],
) -> None:
    engine = hand_loop(checkpoint(variant), slots=slots)
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    check({name: one.token_ids() for name, one in running.items()}, answers(variant))
    assert engine.is_clean()


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 33, 64, 1000])
def test_chunks_change_no_token(
    chunk: int, tiny_checkpoint: Path, answers: Callable[[str], dict[str, Greedy]]
) -> None:
    engine = hand_loop(tiny_checkpoint, slots=3, chunk=chunk)
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    check({name: one.token_ids() for name, one in running.items()}, answers("tied-grouped"))


@pytest.mark.parametrize("seed", range(6))
def test_joining_and_leaving_mid_way_changes_no_token(
    seed: int, tiny_checkpoint: Path, answers: Callable[[str], dict[str, Greedy]]
) -> None:
    """Requests arrive at random ticks, some are aborted at random ticks, the slots start full of NaN."""
    rng = random.Random(seed)
    engine = hand_loop(tiny_checkpoint, slots=rng.randint(2, 5), chunk=rng.randint(3, 40))
    poison(engine.loop.runner.cache)
    kept = []
    for name in rng.choices(list(PROMPTS), k=24):
        running = engine.submit(conversation(PROMPTS[name]))
        if rng.random() < 0.3:
            engine.step(rng.randint(0, 8))
            running.stream.abort()
        else:
            kept.append((name, running))
        engine.step(rng.randint(0, 10))
    engine.run()
    assert len(kept) > 8
    for name, running in kept:
        assert not differing_tokens(running.token_ids(), answers("tied-grouped")[name]), name
    assert engine.is_clean()


def test_the_border_falls_on_every_token_of_a_picture(tiny_checkpoint: Path, golden: Any) -> None:
    """Case pos-chunk-emb: a picture cut by a chunk border takes up its rows where it left them."""
    engine = hand_loop(tiny_checkpoint, slots=1, chunk=16)
    for pad in range(18):
        turns: Turns = [("user", ["x" * pad, picture(96, 96, 7), "Read the number."])]
        running = engine.submit(conversation(turns))
        engine.run()
        assert not differing_tokens(running.token_ids(), golden_answer(golden("tied-grouped"), turns)), pad


def test_poison_in_every_slot_changes_nothing(
    tiny_checkpoint: Path, answers: Callable[[str], dict[str, Greedy]]
) -> None:
    engine = hand_loop(tiny_checkpoint, slots=3, chunk=10)
    for name, turns in PROMPTS.items():
        poison(engine.loop.runner.cache)
        running = engine.submit(conversation(turns))
        engine.run()
        assert not differing_tokens(running.token_ids(), answers("tied-grouped")[name]), name


def test_choices_share_one_prefill_and_greedy_ones_agree(tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint, slots=4, wrap=Sabotaged)
    model = engine.loaded.model
    assert isinstance(model, Sabotaged)
    running = engine.submit(
        conversation(PROMPTS["picture"]), SamplingParams(temperature=0.0, max_tokens=6, n=3)
    )
    engine.run()
    answer = running.answer()
    assert [choice.token_ids for choice in answer.choices] == [answer.choices[0].token_ids] * 3
    assert model.decode_batches[0] == 3
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)


def test_sampled_choices_differ_and_repeat_with_their_seed(tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint, slots=4)
    params = SamplingParams(temperature=1.5, max_tokens=8, n=3, seed=11, ignore_eos=True)
    drawn = []
    for company in (0, 2):
        for _ in range(company):
            engine.submit(conversation(PROMPTS["long text"]), SamplingParams(temperature=1.0, max_tokens=3))
            engine.step()
        running = engine.submit(conversation(PROMPTS["text"]), params)
        engine.run()
        drawn.append([tuple(choice.token_ids) for choice in running.answer().choices])
    assert drawn[0] == drawn[1], "a seeded draw depends on its neighbours"
    assert len(set(drawn[0])) == 3


@pytest.mark.parametrize("name", ["long text", "two pictures"])
def test_aborting_at_every_tick_leaks_nothing(name: str, tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint, slots=2, chunk=20)
    prompt = engine.loaded.frontend.prepare(conversation(PROMPTS[name]))
    whole = engine.submit(prompt)
    ticks = 0
    while not engine.loop.idle:
        engine.step()
        ticks += 1
    expected = whole.token_ids()
    assert ticks > 10
    for tick in range(ticks + 1):
        running = engine.submit(prompt)
        engine.step(tick)
        running.stream.abort()
        assert engine.is_clean(), tick
        running.drain()
        assert not any(isinstance(event, Failed) for event in running.events)
    again = engine.submit(prompt)
    engine.run()
    assert again.token_ids() == expected
    assert len(engine.ended) == ticks + 3


def test_events_come_in_order_and_end_once(tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint)
    running = engine.submit(conversation(PROMPTS["picture"]), SamplingParams(temperature=0, max_tokens=5))
    engine.run()
    running.drain()
    kinds = [type(event) for event in running.events]
    assert kinds == [Delta] * (len(kinds) - 2) + [ChoiceFinished, Finished]
    finished = running.events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == len(
        engine.loaded.frontend.prepare(conversation(PROMPTS["picture"])).token_ids
    )
    assert finished.usage.image_tokens == 6
    timings = finished.timings
    assert min(timings.queue, timings.vision, timings.prefill, timings.decode) >= 0
    assert timings.first_token >= timings.vision + timings.prefill - 1e-3


def test_length_and_context_end_an_answer(tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint, slots=1, context=64)
    short = engine.submit(
        conversation(PROMPTS["text"]), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    )
    rest = engine.submit(conversation(PROMPTS["text"]), SamplingParams(temperature=0, ignore_eos=True))
    engine.run()
    assert len(short.token_ids()) == 3
    assert short.answer().choices[0].reason is FinishReason.LENGTH
    prompt_tokens = rest.answer().usage.prompt_tokens
    assert prompt_tokens + len(rest.token_ids()) == 64
    assert rest.answer().choices[0].reason is FinishReason.LENGTH


@pytest.fixture
def sabotaged(tiny_checkpoint: Path, mode: Mode) -> tuple[HandLoop, Sabotaged]:
    engine = hand_loop(tiny_checkpoint, slots=2, chunk=16, wrap=Sabotaged)
    assert isinstance(engine.loaded.model, Sabotaged)
    return engine, engine.loaded.model


def failure(running: Any) -> str:
    running.drain()
    assert sum(isinstance(event, Failed) for event in running.events) == 1
    assert isinstance(running.events[-1], Failed)
    with pytest.raises(EngineFault) as caught:
        running.answer()
    return str(caught.value)


@pytest.mark.parametrize("after", [0, 3])
def test_nan_ends_its_request_alone_and_is_scrubbed(
    after: int, sabotaged: tuple[HandLoop, Sabotaged], answers: Callable[[str], dict[str, Greedy]]
) -> None:
    engine, model = sabotaged
    victim = engine.submit(conversation(PROMPTS["text"]))
    neighbour = engine.submit(conversation(PROMPTS["picture"]))
    engine.step(after)
    model.nan_slots = {0}
    with quiet("kaminari.engine"):
        while not any(isinstance(event, Failed) for event in victim.events):
            engine.step()
            victim.drain()
    model.nan_slots = set()
    assert "not finite" in failure(victim)
    assert not any(layer.keys[0].isnan().any() for layer in engine.loop.runner.cache.layers)  # type: ignore[attr-defined]
    again = engine.submit(conversation(PROMPTS["text"]))
    engine.run()
    expected = answers("tied-grouped")
    assert not differing_tokens(neighbour.token_ids(), expected["picture"])
    assert not differing_tokens(again.token_ids(), expected["text"])
    assert engine.is_clean()


def test_a_fault_in_a_chunk_ends_that_request_alone(sabotaged: tuple[HandLoop, Sabotaged]) -> None:
    engine, model = sabotaged
    model.fail_next = RuntimeError("secret of the device")
    victim = engine.submit(conversation(PROMPTS["text"]))
    other = engine.submit(conversation(PROMPTS["text"]))
    with quiet("kaminari.engine"):
        engine.run()
    assert "secret" not in failure(victim)
    assert other.answer().choices[0].token_ids
    assert engine.is_clean()


def test_a_fault_in_a_decode_step_ends_its_batch_and_the_engine_goes_on(
    sabotaged: tuple[HandLoop, Sabotaged],
) -> None:
    engine, model = sabotaged
    batch = [engine.submit(conversation(PROMPTS["text"])) for _ in range(2)]
    waiting = engine.submit(conversation(PROMPTS["text"]))
    while not model.decode_batches or model.decode_batches[-1] < 2:
        engine.step()
    model.fail_next = RuntimeError("boom")
    with quiet("kaminari.engine"):
        engine.run()
    assert all(failure(running) for running in batch)
    assert waiting.answer().choices[0].token_ids
    assert engine.is_clean()


def test_a_fault_in_the_tower_or_a_missing_row_ends_that_request_alone(
    sabotaged: tuple[HandLoop, Sabotaged],
) -> None:
    engine, model = sabotaged
    with quiet("kaminari.engine"):
        model.fail_picture = MemoryError()
        first = engine.submit(conversation(PROMPTS["picture"]))
        engine.run()
        model.drop_row = True
        second = engine.submit(conversation(PROMPTS["picture"]))
        engine.run()
    third = engine.submit(conversation(PROMPTS["picture"]))
    engine.run()
    assert failure(first)
    assert failure(second)
    assert third.answer().choices[0].token_ids
    assert engine.is_clean()


def test_fail_all_tells_every_reader(tiny_checkpoint: Path) -> None:
    engine = hand_loop(tiny_checkpoint, slots=1)
    runnings = [engine.submit(conversation(PROMPTS["text"])) for _ in range(3)]
    engine.step(3)
    engine.loop.fail_all("closing time")
    assert [failure(running) for running in runnings] == ["closing time"] * 3
    assert engine.is_clean()


def test_five_hundred_random_requests(
    sabotaged: tuple[HandLoop, Sabotaged], answers: Callable[[str], dict[str, Greedy]]
) -> None:
    """Mixed, some aborted, some faulty, some NaN: every slot is free at the end and every answer right."""
    engine, model = sabotaged
    rng = random.Random(500)
    expected = answers("tied-grouped")
    prompts = {name: engine.loaded.frontend.prepare(conversation(turns)) for name, turns in PROMPTS.items()}
    names = list(PROMPTS)
    live: list[tuple[str, Any]] = []
    right = failed = aborted = refused = 0

    def settle(everything: bool = False) -> None:
        nonlocal right, failed
        for name, running in list(live):
            running.drain()
            last = running.events[-1] if running.events else None
            if isinstance(last, Failed):
                failed += 1
            elif isinstance(last, Finished):
                assert not differing_tokens(running.token_ids(), expected[name])
                right += 1
            else:
                assert not everything
                continue
            live.remove((name, running))

    with quiet("kaminari.engine"):
        for _ in range(500):
            if rng.random() < 0.08:
                with pytest.raises(RequestError):
                    engine.submit(rng.choice(BAD))
                refused += 1
                continue
            name = rng.choice(names)
            live.append((name, engine.submit(prompts[name])))
            if rng.random() < 0.15:
                gone = rng.choice(live)
                gone[1].drain()
                if not (gone[1].events and isinstance(gone[1].events[-1], Failed | Finished)):
                    gone[1].stream.abort()
                    live.remove(gone)
                    aborted += 1
            model.nan_slots = {rng.randrange(2)} if rng.random() < 0.05 else set()
            if rng.random() < 0.03:
                model.fail_next = RuntimeError("boom")
            if rng.random() < 0.03:
                model.fail_picture = RuntimeError("boom")
            engine.step(rng.randint(0, 9))
            settle()
        model.nan_slots, model.fail_next, model.fail_picture = set(), None, None
        engine.run(20000)
    settle(everything=True)
    assert engine.is_clean()
    assert right + failed + aborted + refused == 500
    assert refused > 20
    assert right > 300
    assert failed > 20
    assert aborted > 30


def test_a_fault_in_one_rows_text_is_that_requests_alone(
    tiny_checkpoint: Path, answers: Callable[[str], dict[str, Greedy]]
) -> None:
    engine = hand_loop(tiny_checkpoint, slots=2)
    victim = engine.submit(conversation(PROMPTS["text"]))
    neighbour = engine.submit(conversation(PROMPTS["picture"]))
    engine.step(3)

    def explode(token: int) -> Any:
        raise MemoryError

    engine.loop._requests[victim.id].writers[0].push = explode  # type: ignore[method-assign]
    with quiet("kaminari.engine"):
        engine.run()
    assert failure(victim)
    assert not differing_tokens(neighbour.token_ids(), answers("tied-grouped")["picture"])
    assert engine.is_clean()


@pytest.mark.parametrize("place", ["ChoiceWriter", "Request.finished"])
def test_a_fault_at_either_end_of_a_request_is_that_requests_alone(
    place: str, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: Any, **__: Any) -> Any:
        raise MemoryError

    engine = hand_loop(tiny_checkpoint, slots=1)
    with monkeypatch.context() as patch, quiet("kaminari.engine"):
        patch.setattr(f"kaminari.engine.loop.{place}", explode)
        victim = engine.submit(conversation(PROMPTS["text"]))
        engine.run()
    assert failure(victim)
    after = engine.submit(conversation(PROMPTS["text"]))
    engine.run()
    assert after.token_ids()
    assert engine.is_clean()
