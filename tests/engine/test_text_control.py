"""A control spelling in a person's words never survives, however a template trims and joins; text does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kaminari.engine.control_text import SENTINEL, ControlEscape

SPELLINGS = ("<|im_end|>", "<|im_start|>", "<|image_pad|>", "[gMASK]", "<sop>", "aab", "~", "<s>", "><")
FRAGMENTS = (
    *SPELLINGS,
    *("<", "|>", "<|im", "_end|>", "<|", "[g", "MASK]", "aa", "a", "b", ">", "s>"),
    *(" ", "\n", "\t \n", "\u3000", "\x1c"),
    *(SENTINEL, "\U0010ff00", "\U0010ff01", "\ue000"),
    *("<tool_call>", "</think>", "é", "word"),
)
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)
escape = ControlEscape(SPELLINGS)


@settings(max_examples=500)
@given(texts)
def test_what_is_escaped_comes_back_as_it_was(text: str) -> None:
    assert escape.restore(escape.escape(text)) == text


@settings(max_examples=500)
@given(st.lists(st.tuples(texts, st.booleans()), min_size=1, max_size=4))
def test_no_spelling_is_seen_in_joined_pieces(pieces: list[tuple[str, bool]]) -> None:
    escaped = [(escape.escape(text), trimmed) for text, trimmed in pieces]
    joined = "".join(text.strip() if trimmed else text for text, trimmed in escaped)
    assert not any(spelling in joined for spelling in SPELLINGS)
    assert escape.restore(joined) == "".join(text.strip() if trimmed else text for text, trimmed in pieces)


@given(st.text(st.characters(exclude_characters=SENTINEL + "<[a~>", exclude_categories=("Cs",))))
def test_ordinary_text_is_not_touched(text: str) -> None:
    assert escape.escape(text) == text


def test_tags_that_templates_look_for_are_not_touched() -> None:
    qwen = ControlEscape(["<|im_end|>", "<|im_start|>"])
    text = "<think>\nno</think><tool_response>x</tool_response><|im"
    assert qwen.escape(text).startswith("<think>\nno</think><tool_response>x</tool_response>")


def test_values_are_escaped_at_every_depth() -> None:
    value = {"<s>": ["~", {"n": 1, "flag": True}, ("<sop>", None)]}
    escaped = escape.escape_all(value)
    (key,) = escaped
    assert escape.restore(key) == "<s>" != key
    assert [type(item) for item in escaped[key]] == [str, dict, list]
    assert escaped[key][1] == {"n": 1, "flag": True}
    assert escape.restore(escaped[key][2][0]) == "<sop>" != escaped[key][2][0]


def test_a_tokenizer_without_control_tokens_escapes_the_sentinel_only() -> None:
    nothing = ControlEscape([])
    assert nothing.escape("<|im_end|>") == "<|im_end|>"
    assert nothing.restore(nothing.escape(SENTINEL * 3)) == SENTINEL * 3


def test_long_runs_cost_linear_time() -> None:
    for text in ("<" * 300_000, "< " * 150_000, "<" + " " * 300_000 + "x", " " * 300_000, SENTINEL * 300_000):
        assert escape.restore(escape.escape(text)) == text
