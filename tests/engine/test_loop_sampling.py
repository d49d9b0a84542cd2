"""Sampling fields through the whole loop: every token is the oracle's, pictures, choices and company or not.

The oracle sees the raw logits that the model's head made, and knows nothing of tables or devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kaminari.engine.conversation import Conversation
from kaminari.engine.events import Delta, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.engine.step_block import Block
from kaminari.engine.step_graphs import Launched
from tests.engine.harness import HandLoop, Mode, Running, Sabotaged, hand_loop, picture
from tests.engine.test_sampler_edits import oracle

pytestmark = pytest.mark.usefixtures("mode")
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TEXT = Conversation.ask("red red red red, what is red?")
PICTURE = Conversation.ask("Read.", picture(128, 96, 1))
FIELDS = [
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0, "presence_penalty": -1.0},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7, "frequency_penalty": 0.3},
    {"logit_bias": tuple((token, 6.0) for token in range(60, 90))},
    {"logit_bias": tuple((token, -5.0) for token in range(200)), "frequency_penalty": 1.0},
]


class Recording(Sabotaged):
    """Keeps the logits of every step."""

    def __init__(self, model: Sabotaged) -> None:
        super().__init__(model)
        self.logits: list[Tensor] = []

    def head(self, hidden: Tensor) -> Tensor:
        logits = super().head(hidden)
        self.logits.append(logits.float())
        return logits

    def replay(self, run: Callable[[Block], Launched], block: Block) -> Launched:
        launched = super().replay(run, block)
        self.finish()
        self.logits.append(launched.logits.float().clone())
        return launched


@pytest.fixture
def loop(tiny_checkpoint: Path, mode: Mode) -> HandLoop:
    made = hand_loop(tiny_checkpoint, wrap=Recording)  # type: ignore[arg-type]
    made.loop.runner.model.logits.clear()  # type: ignore[attr-defined]
    return made


def raw(loop: HandLoop) -> list[list[float]]:
    """The raw logits of a request that ran alone with one choice, one row per token."""
    rows: list[list[float]] = [logits[0].tolist() for logits in loop.loop.runner.model.logits]  # type: ignore[attr-defined]
    return rows


def run(loop: HandLoop, conversation: Conversation, params: SamplingParams) -> Running:
    running = loop.submit(conversation, params)
    loop.run()
    return running


def text_tokens(loop: HandLoop, conversation: Conversation) -> list[int]:
    prompt = loop.loaded.frontend.prepare(conversation)
    covered = {index for span in prompt.spans for index in range(span.start, span.stop)}
    assert len(covered) == prompt.image_tokens
    return [token for index, token in enumerate(prompt.token_ids) if index not in covered]


@pytest.mark.parametrize("conversation", [TEXT, PICTURE], ids=["text", "picture"])
@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: " ".join(fields))
def test_every_token_is_the_oracle_s(
    loop: HandLoop, conversation: Conversation, fields: dict[str, object]
) -> None:
    params = replace(GREEDY, **fields)  # type: ignore[arg-type]
    made = list(run(loop, conversation, params).token_ids())
    prompt = text_tokens(loop, conversation)
    assert len(made) == len(raw(loop)) == params.max_tokens
    changed = 0
    for place, logits in enumerate(raw(loop)):
        edited = oracle(logits, params, prompt, made[:place])
        assert edited[made[place]] == pytest.approx(max(edited), abs=1e-4)
        changed += made[place] != max(range(len(logits)), key=logits.__getitem__)
    assert changed


def test_a_placeholder_counts_for_no_penalty(loop: HandLoop) -> None:
    """The placeholder's own logit is left as it is, though the prompt is full of it."""
    prompt = loop.loaded.frontend.prepare(PICTURE)
    placeholder = prompt.token_ids[prompt.spans[0].start]
    assert placeholder not in text_tokens(loop, PICTURE)
    lifted = replace(GREEDY, max_tokens=1, logit_bias=((placeholder, 100.0),), repetition_penalty=100.0)
    assert run(loop, PICTURE, lifted).token_ids() == (placeholder,)
    (logits,) = raw(loop)
    edited = oracle(logits, lifted, text_tokens(loop, PICTURE), [])
    assert edited[placeholder] == pytest.approx(logits[placeholder] + 100.0)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: " ".join(fields))
def test_company_chunks_and_choices_change_nothing(tiny_checkpoint: Path, fields: dict[str, object]) -> None:
    params = replace(GREEDY, temperature=0.8, seed=5, **fields)  # type: ignore[arg-type]
    alone = [run(hand_loop(tiny_checkpoint), c, replace(params, n=2)).answer() for c in (TEXT, PICTURE)]
    crowd = hand_loop(tiny_checkpoint, slots=6, chunk=17)
    plain = crowd.submit(TEXT, GREEDY)
    both = [crowd.submit(c, replace(params, n=2)) for c in (TEXT, PICTURE)]
    crowd.run()
    for one, other in zip(alone, both, strict=True):
        ids = [choice.token_ids for choice in one.choices]
        assert ids[0] != ids[1]
        assert ids == [choice.token_ids for choice in other.answer().choices]
    assert plain.token_ids() == run(hand_loop(tiny_checkpoint), TEXT, GREEDY).token_ids()
    again = crowd.submit(TEXT, GREEDY)
    crowd.run()
    assert again.token_ids() == plain.token_ids()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_raw_logits(loop: HandLoop, temperature: float) -> None:
    params = replace(GREEDY, temperature=temperature, seed=3, logprobs=4, frequency_penalty=1.0, top_k=30)
    running = run(loop, PICTURE, params)
    (choice,) = running.answer().choices
    assert len(choice.logprobs) == len(choice.token_ids) == len(raw(loop))
    for logits, token, named in zip(raw(loop), choice.token_ids, choice.logprobs, strict=True):
        expected = torch.tensor(logits, dtype=torch.float64).log_softmax(-1).tolist()
        order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        assert named.token.token_id == token
        assert named.token.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [rival.token_id for rival in named.top] == order[:4]
        assert [rival.logprob for rival in named.top] == pytest.approx(
            [expected[i] for i in order[:4]], abs=1e-4
        )
    joined = b"".join(named.token.bytes for named in choice.logprobs)
    assert joined.decode("utf-8", "replace") == choice.text


def test_each_row_gets_as_many_logprobs_as_it_asked_for(tiny_checkpoint: Path) -> None:
    loop = hand_loop(tiny_checkpoint)
    asked = [loop.submit(TEXT, replace(GREEDY, logprobs=top)) for top in (None, 0, 3, 20)]
    loop.run()
    assert len({running.token_ids() for running in asked}) == 1
    counts = [{len(one.top) for one in running.answer().choices[0].logprobs} for running in asked]
    assert counts == [set(), {0}, {3}, {20}]
    named = [
        [[rival.token_id for rival in one.top] for one in running.answer().choices[0].logprobs]
        for running in asked
    ]
    assert [top[:3] for top in named[3]] == named[2]
    deltas = [event for event in asked[2].events if isinstance(event, Delta)]
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)


def ends(loop: HandLoop, made: Sequence[int], place: int) -> int:
    """A token that the answer has at a place and at none before."""
    token = made[place]
    assert token not in made[:place]
    return token


def test_a_stop_token_ends_the_answer_and_is_not_shown(loop: HandLoop) -> None:
    params = replace(GREEDY, frequency_penalty=2.0)
    plain = run(loop, TEXT, params).answer().choices[0]
    token = ends(loop, plain.token_ids, 5)
    stopped = run(loop, TEXT, replace(params, stop_token_ids=(token,), logprobs=1)).answer().choices[0]
    assert stopped.reason is FinishReason.STOP
    assert stopped.token_ids == plain.token_ids[:6]
    assert plain.text.startswith(stopped.text)
    assert stopped.logprobs[-1].token.bytes == b""
    joined = b"".join(named.token.bytes for named in stopped.logprobs)
    assert joined.decode("utf-8", "replace") == stopped.text


def test_nothing_ends_an_answer_before_its_least_length(loop: HandLoop) -> None:
    params = replace(GREEDY, frequency_penalty=2.0)
    plain = run(loop, TEXT, params).answer().choices[0]
    token = ends(loop, plain.token_ids, 5)
    held = replace(params, stop_token_ids=(token,), min_tokens=12)
    answer = run(loop, TEXT, held).answer().choices[0]
    assert len(answer.token_ids) > 12
    assert token not in answer.token_ids[:12]
    assert answer.token_ids[:5] == plain.token_ids[:5]
    eos = next(iter(loop.loaded.end_token_ids))
    wanted = replace(GREEDY, ignore_eos=False, logit_bias=((eos, 100.0),))
    assert run(loop, TEXT, wanted).token_ids() == (eos,)
    kept = run(loop, TEXT, replace(wanted, min_tokens=7)).token_ids()
    assert len(kept) == 8
    assert kept.index(eos) == 7


def test_a_stop_string_counts_in_what_follows_the_least_length(loop: HandLoop) -> None:
    params = replace(GREEDY, logit_bias=((loop.loaded.frontend.tokenizer.token_to_id("a"), 100.0),))
    assert run(loop, TEXT, params).answer().text == "a" * 24
    for least in (0, 1, 5):
        answer = run(loop, TEXT, replace(params, stop=("aaa",), min_tokens=least)).answer()
        assert answer.text == "a" * least
        assert len(answer.choices[0].token_ids) == least + 3
        assert answer.choices[0].reason is FinishReason.STOP


def test_a_logprob_is_never_above_zero(loop: HandLoop) -> None:
    (choice,) = run(loop, TEXT, replace(GREEDY, logprobs=20)).answer().choices
    for named in choice.logprobs:
        assert sum(math.exp(rival.logprob) for rival in named.top) <= 1 + 1e-5
        assert named.token.logprob <= 1e-6
