"""Answers that follow a grammar, from the demo model: valid for many schemas, and nobody else is touched."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from llguidance import LLMatcher

import kaminari
from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine import constraints
from kaminari.engine.answer import collect
from kaminari.engine.answer_format import (
    AnswerFormat,
    ChoiceFormat,
    JsonFormat,
    RegexFormat,
)
from kaminari.engine.constraints import NO_TOKEN, TOO_COSTLY, Constraint, Grammar
from kaminari.engine.conversation import Conversation
from kaminari.engine.engine import Engine
from kaminari.engine.errors import EngineFault, RequestError
from kaminari.engine.events import Failed, FinishReason
from kaminari.engine.params import SamplingParams
from tests.engine.harness import hand_loop, picture, quiet
from tests.engine.random_schemas import random_schema

DEMO = Path(kaminari.__file__).parent / "demo"
SCHEMAS = 240
MOST_TOKENS = 400


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = Settings(
        model=ModelSettings(dtype="float32"),
        engine=EngineSettings(threads=1, slots=8, context=600, queue_size=SCHEMAS),
    )
    with Engine.load(settings) as loaded:
        yield loaded


def ask(text: str, form: AnswerFormat | None = None, *pictures: bytes) -> Conversation:
    plain = Conversation.ask(text, *pictures)
    return Conversation(plain.messages, answer_format=form)


def test_every_answer_is_valid_for_its_schema(engine: Engine) -> None:
    """With temperature; answers that were cut by length are not, and at least 200 are left."""
    rng = random.Random(20)
    schemas = [random_schema(rng) for _ in range(SCHEMAS)]
    streams = [
        engine.submit(
            engine.prepare(ask("Describe something.", JsonFormat(schema))),
            SamplingParams(temperature=1.0, seed=number, max_tokens=MOST_TOKENS),
        )
        for number, schema in enumerate(schemas)
    ]
    whole = 0
    for schema, stream in zip(schemas, streams, strict=True):
        choice = collect(stream).choices[0]
        if choice.reason is FinishReason.LENGTH:
            continue
        assert choice.reason is FinishReason.STOP
        value = json.loads(choice.text)
        jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).validate(value)
        json.dumps(value, ensure_ascii=False).encode()
        whole += 1
    assert whole >= 200, f"{SCHEMAS - whole} of {SCHEMAS} answers were cut by length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_grammar_changes_no_other_and_is_changed_by_none(
    engine: Engine, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=30)
    forms = [None, RegexFormat("[a-f]{12}"), None, ChoiceFormat(("north", "south"))]
    prompts = [engine.prepare(ask("What is the capital of France?", form)) for form in forms]
    alone = [collect(engine.submit(prompt, params)).choices[0].token_ids for prompt in prompts]
    together = [engine.submit(prompt, params) for prompt in prompts]
    assert [collect(stream).choices[0].token_ids for stream in together] == alone


def test_each_choice_has_a_grammar_of_its_own(engine: Engine) -> None:
    prompt = engine.prepare(ask("Say something.", RegexFormat("[a-z]{2,9}[0-9]")))
    params = SamplingParams(n=4, temperature=1.5, seed=1, max_tokens=20)
    choices = collect(engine.submit(prompt, params)).choices
    assert {choice.reason for choice in choices} == {FinishReason.STOP}
    assert len({choice.text for choice in choices}) > 1
    assert all(choice.text[-1].isdigit() and choice.text[:-1].isalpha() for choice in choices)


def test_pictures_do_not_loosen_a_grammar(engine: Engine) -> None:
    prompt = engine.prepare(ask("Write a poem.", ChoiceFormat(("red", "blue")), picture(96, 64)))
    assert collect(engine.submit(prompt, SamplingParams(temperature=0))).text in ("red", "blue")


def test_a_finished_grammar_ends_the_answer_also_where_the_end_token_is_ignored(engine: Engine) -> None:
    prompt = engine.prepare(ask("Count.", JsonFormat({"enum": [12345]})))
    for ignore in (False, True):
        choice = collect(engine.submit(prompt, SamplingParams(temperature=1, ignore_eos=ignore))).choices[0]
        assert (choice.text, choice.reason) == ("12345", FinishReason.STOP)


def test_stop_strings_still_end_an_answer(engine: Engine) -> None:
    prompt = engine.prepare(ask("x", JsonFormat({"enum": [{"a": 1}]})))
    choice = collect(engine.submit(prompt, SamplingParams(temperature=0, stop=("1",)))).choices[0]
    assert choice.stop == "1"
    assert choice.text.replace(" ", "").replace("\n", "") == '{"a":'


def test_a_form_that_cannot_be_enforced_is_refused_before_anything_is_queued(engine: Engine) -> None:
    with pytest.raises(RequestError, match="cannot be enforced") as refusal:
        engine.prepare(ask("x", RegexFormat("(?=a)", field="structured_outputs.regex")))
    assert refusal.value.field == "structured_outputs.regex"
    assert engine.status().running == 0


class _Stuck(Constraint):
    """Allows nothing from the third token on."""

    def __init__(self, matcher: LLMatcher) -> None:
        super().__init__(matcher)
        self._taken = 0

    def accept(self, token: int) -> None:
        super().accept(token)
        self._taken += 1
        if self._taken == 3:
            super().accept(0)


class _StuckGrammar(Grammar):
    def new(self) -> Constraint:
        return _Stuck(self._start.deep_copy())


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_hold_in_every_mode_and_company(temperature: float, tiny_checkpoint: Path) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24)
    forms = [RegexFormat("[a-f]{12}"), None, RegexFormat("([0-9]{2}-){3}x"), ChoiceFormat(("north", "south"))]
    loop = hand_loop(tiny_checkpoint, slots=4)
    prompts = [loop.loaded.frontend.prepare(ask("What is the capital of France?", form)) for form in forms]
    alone = []
    for prompt in prompts:
        running = loop.submit(prompt, params)
        loop.run()
        alone.append(running.answer().choices[0])
    together = [loop.submit(prompt, params) for prompt in prompts]
    loop.run()
    assert [running.answer().choices[0] for running in together] == alone
    held = [choice for choice, form in zip(alone, forms, strict=True) if form]
    assert {choice.reason for choice in held} == {FinishReason.STOP}
    assert re.fullmatch("[a-f]{12}", alone[0].text)
    assert re.fullmatch("([0-9]{2}-){3}x", alone[2].text)
    assert alone[3].text in ("north", "south")


@pytest.mark.usefixtures("mode")
def test_a_mask_that_allows_nothing_is_a_fault_of_that_request_only(tiny_checkpoint: Path) -> None:
    loop = hand_loop(tiny_checkpoint, slots=3)
    prompt = loop.loaded.frontend.prepare(ask("What is the capital of France?"))
    alone = loop.submit(prompt)
    loop.run()
    held = loop.loaded.frontend.prepare(ask("x", RegexFormat("[a-z]{30}")))
    assert held.grammar is not None
    object.__setattr__(held, "grammar", _StuckGrammar(held.grammar._start, "structured_outputs.regex"))
    stuck, neighbour = loop.submit(held), loop.submit(prompt)
    with quiet("kaminari.engine"):
        loop.run()
    assert neighbour.token_ids() == alone.token_ids()
    with pytest.raises(EngineFault, match=NO_TOKEN):
        stuck.answer()
    assert stuck.events[-1] == Failed(NO_TOKEN, "structured_outputs.regex")
    assert loop.is_clean()


def test_a_grammar_that_is_costly_only_while_it_runs_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock by which each step of a grammar takes a tenth of a second."""
    loop = hand_loop(DEMO, slots=3)
    question = ask("What is the capital of France?")
    alone = loop.submit(question)
    loop.run()
    tenths = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: next(tenths) / 10)
    monkeypatch.setattr(constraints, "time", clock)
    quick = loop.submit(ask("x", RegexFormat("[a-z]{4}")))
    costly = loop.submit(ask("x", RegexFormat("[a-z]{300}")), SamplingParams(max_tokens=300))
    neighbour = loop.submit(question)
    with quiet("kaminari.engine"):
        loop.run()
    assert neighbour.token_ids() == alone.token_ids()
    assert len(quick.answer().choices[0].text) == 4
    costly.drain()
    assert costly.events[-1] == Failed(TOO_COSTLY, "structured_outputs.regex")
    assert loop.is_clean()


@pytest.mark.usefixtures("mode")
def test_a_grammar_that_cannot_be_copied_fails_its_request_alone(tiny_checkpoint: Path) -> None:
    loop = hand_loop(tiny_checkpoint, slots=2)
    question = ask("What is the capital of France?")
    alone = loop.submit(question)
    loop.run()
    held = loop.loaded.frontend.prepare(ask("x", RegexFormat("a")))
    object.__setattr__(held, "grammar", object())
    with quiet("kaminari.engine"):
        broken = loop.submit(held)
    fine = loop.submit(question)
    loop.run()
    with pytest.raises(EngineFault):
        broken.answer()
    assert fine.token_ids() == alone.token_ids()
    assert loop.is_clean()
