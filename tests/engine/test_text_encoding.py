"""Ids of text between control tokens are the reference's, and control spellings in it are only text."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kaminari.engine.control_text import SENTINEL
from kaminari.engine.text_encoding import CHUNK, NFC_SHRINKS, Control, TextEncoder
from kaminari.model.family import CheckpointError
from kaminari.model.tokenizer import load_tokenizer
from tests.checkpoints import ORDINARY_ADDED_TOKENS, SPECIAL_TOKENS, build_tokenizer
from tests.patience import processor_time

FRAGMENTS = (
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", "\x00"),
    *(
        "the",
        " the",
        "in",
        "é",
        "e\u0301",
        "ﬁ",
        "中文",
        "🙂",
        "👩\u200d👩\u200d👧",
        "\u0301",
        "한",
        "9",
        "123",
    ),
    *("<", "<|", "|>", "<|im", "'s", "'LL", "...\n", "\ue000", "\U0010fffd", "\U0010ff00"),
    *ORDINARY_ADDED_TOKENS,
)
ordinary = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=12).map("".join)
hostile = st.lists(st.sampled_from(FRAGMENTS + SPECIAL_TOKENS) | st.text(max_size=3), max_size=12).map(
    "".join
)
controls = st.sampled_from(SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> TextEncoder:
    return TextEncoder(load_tokenizer(tiny_checkpoint))


@pytest.fixture(scope="module")
def library(tiny_checkpoint: Path) -> PreTrainedTokenizerFast:
    """The reference, as its users call it."""
    return load_tokenizer(tiny_checkpoint)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(controls, ordinary), min_size=1, max_size=4), ordinary)
def test_ordinary_text_has_the_references_ids(
    encoder: TextEncoder, library: PreTrainedTokenizerFast, turns: list[tuple[str, str]], first: str
) -> None:
    texts = [first, *(text for _, text in turns)]
    if any(spelling in text for text in texts for spelling in SPECIAL_TOKENS):
        return
    plain = first + "".join(control + text for control, text in turns)
    escaped = encoder.escape.escape(first) + "".join(
        control + encoder.escape.escape(text) for control, text in turns
    )
    assert encoder.encode_pieces(encoder.split(escaped)) == library(plain)["input_ids"]


@settings(max_examples=400, deadline=None)
@given(st.lists(hostile, min_size=1, max_size=4))
def test_hostile_text_is_text(encoder: TextEncoder, texts: list[str]) -> None:
    control = SPECIAL_TOKENS[2]
    pieces = list(encoder.split("".join(control + encoder.escape.escape(text) for text in texts)))
    assert pieces.count(Control(encoder.tokenizer.token_to_id(control))) == len(texts)
    ids = encoder.encode_pieces(pieces)
    assert sum(token in encoder.special_ids for token in ids) == len(texts)
    whole = "".join(control + unicodedata.normalize("NFC", text) for text in texts)
    assert encoder.tokenizer.decode(ids, skip_special_tokens=False) == whole


@pytest.mark.parametrize("lstrip", [False, True])
@pytest.mark.parametrize("rstrip", [False, True])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(ordinary | st.just("<ctl>") | st.just(" \u2003\n<ctl>\t "), max_size=6)
    .map("".join)
    .filter(lambda text: SENTINEL not in text)  # a template's own text; what people write comes escaped
)
def test_blanks_beside_a_control_token_go_where_the_library_puts_them(
    lstrip: bool, rstrip: bool, text: str
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<ctl>", special=True, lstrip=lstrip, rstrip=rstrip)])
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert encoder.encode_pieces(encoder.split(text)) == whole


def test_a_tokenizer_whose_text_depends_on_its_place_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate("▁abc\n")}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<s>"])
    with pytest.raises(CheckpointError, match="beside a control token"):
        TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_a_control_token_that_must_be_a_word_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens([AddedToken("ctl", special=True, single_word=True)])
    with pytest.raises(CheckpointError, match="stand alone"):
        TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_nothing_is_truncated_padded_or_added() -> None:
    tokenizer = build_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=4))
    assert len(encoder.encode("x" * 20)) == 20
    assert encoder.encode("") == []
    assert list(encoder.split("")) == []


def test_lim_overflow_a_text_that_is_far_too_long_costs_little(encoder: TextEncoder) -> None:
    text = "word " * 2_000_000
    with processor_time(1):
        assert encoder.least_tokens(text, 4096) > 4096
        assert encoder.least_tokens(text, 262_144) > 262_144


def test_a_text_that_is_too_long_is_found_where_bytes_tell_nothing() -> None:
    tokenizer = build_tokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    text = "word " * 2_000_000
    with processor_time(1):
        assert encoder.least_tokens(text, 10_000) > 10_000
    assert encoder.least_tokens("word", 1) == 0


@settings(max_examples=40, deadline=None)
@given(hostile, st.integers(0, 40_000))
def test_the_lower_bound_is_one(encoder: TextEncoder, text: str, repeats: int) -> None:
    text = (text * repeats)[: 2 * CHUNK]
    actual = len(encoder.encode(text))
    assert encoder.least_tokens(text, 10**9) <= actual
    assert encoder.least_tokens(text, 50) <= actual


def test_composing_never_saves_more_than_the_bound_assumes() -> None:
    singles: dict[str, int] = {}
    pairs: dict[str, str] = {}
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        char = chr(code)
        decomposition = unicodedata.decomposition(char)
        if not decomposition or decomposition.startswith("<"):
            continue
        parts = "".join(chr(int(part, 16)) for part in decomposition.split())
        composed = unicodedata.normalize("NFC", char)
        if composed != char and len(composed) == 1:
            singles[composed] = max(singles.get(composed, 0), len(char.encode()))
        elif composed == char:
            pairs[char] = parts

    def longest(char: str) -> int:
        parts = pairs.get(char)
        spelled = sum(map(longest, parts)) if parts else 0
        return max(len(char.encode()), singles.get(char, 0), spelled)

    for char in {*singles, *pairs}:
        assert longest(char) <= NFC_SHRINKS * len(char.encode()), hex(ord(char))
    syllable = "한"  # composed by rule, so it is in no table
    assert len(unicodedata.normalize("NFD", syllable).encode()) <= NFC_SHRINKS * len(syllable.encode())


def test_special_tokens_are_those_of_the_checkpoint(encoder: TextEncoder) -> None:
    assert {encoder.tokenizer.id_to_token(token) for token in encoder.special_ids} == set(SPECIAL_TOKENS)
