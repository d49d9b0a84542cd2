"""One choice's way from tokens to deltas: ends, stop strings and what is never shown."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from kaminari.engine.answer_format import ChoiceFormat
from kaminari.engine.detokenizer import DetokenizerFactory
from kaminari.engine.events import ChoiceFinished, Delta, Event, FinishReason
from kaminari.engine.grammar import GrammarCompiler
from kaminari.engine.params import SamplingParams
from kaminari.engine.token_text import TokenText
from kaminari.engine.writer import ChoiceWriter
from tests.checkpoints import build_tokenizer

TOKENIZER: Tokenizer = build_tokenizer()
DETOKENIZERS = DetokenizerFactory(TOKENIZER)
TEXT = TokenText(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def write(
    tokens: list[int], params: SamplingParams, max_tokens: int = 1000
) -> tuple[str, list[Event], ChoiceWriter]:
    writer = ChoiceWriter(0, DETOKENIZERS.new(), params, frozenset({END}), max_tokens, TEXT)
    events: list[Event] = []
    for token in tokens:
        events += writer.push(token)
        if writer.reason is not None:
            break
    return "".join(event.text for event in events if isinstance(event, Delta)), events, writer


def test_an_end_token_ends_the_choice_and_is_not_shown() -> None:
    text, events, writer = write([*ids("the end"), END], SamplingParams())
    assert text == "the end"
    assert events[-1] == ChoiceFinished(0, FinishReason.STOP)
    assert isinstance(events[-2], Delta)
    assert events[-2].token_ids == (END,)
    assert writer.tokens == len(ids("the end")) + 1


def test_ignore_eos_goes_on_and_still_shows_no_control_token() -> None:
    text, _, writer = write([*ids("a"), END, *ids("b")], SamplingParams(ignore_eos=True))
    assert text == "ab"
    assert writer.reason is None


def test_length_ends_the_choice_and_flushes_what_was_held() -> None:
    tokens = ids("abcST")
    text, events, _ = write(tokens, SamplingParams(stop=("STOP",)), max_tokens=len(tokens))
    assert text == "abcST"
    assert events[-1] == ChoiceFinished(0, FinishReason.LENGTH)


def test_an_end_token_on_the_last_place_is_a_stop() -> None:
    _, events, _ = write([*ids("a"), END], SamplingParams(), max_tokens=2)
    assert events[-1] == ChoiceFinished(0, FinishReason.STOP)


@pytest.mark.parametrize("text", ["one, two STOP three", "STOP", "aSTOSTOPb"])
def test_a_stop_string_across_tokens_is_never_shown(text: str) -> None:
    shown, events, _ = write(ids(text), SamplingParams(stop=("STOP", "never")))
    assert shown == text[: text.index("STOP")]
    assert events[-1] == ChoiceFinished(0, FinishReason.STOP, "STOP")


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    tokens = ids("字")
    assert len(tokens) > 1
    text, _, _ = write(tokens[:-1], SamplingParams(), max_tokens=len(tokens) - 1)
    assert text == TOKENIZER.decode(tokens[:-1])
    assert "\ufffd" in text


def test_a_choice_that_is_over_takes_no_more_tokens() -> None:
    _, _, writer = write([END], SamplingParams())
    with pytest.raises(RuntimeError, match="over"):
        writer.push(END)


def test_a_grammar_that_is_finished_ends_the_choice() -> None:
    compiler = GrammarCompiler(TOKENIZER, {END})
    constraint = compiler.compile(ChoiceFormat(("the end",))).new()
    writer = ChoiceWriter(
        0, DETOKENIZERS.new(), SamplingParams(ignore_eos=True), {END}, 1000, TEXT, constraint
    )
    *before, last = ids("the end")
    assert all(len(writer.push(token)) == 1 for token in before)
    assert writer.push(last)[-1] == ChoiceFinished(0, FinishReason.STOP)
