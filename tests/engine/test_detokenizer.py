"""Pushed and flushed text joins to the tokenizer's own whole decode, for every decoder that is supported."""

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import kaminari
from kaminari.engine.detokenizer import DetokenizerFactory, token_bytes
from kaminari.engine.token_table import token_table
from kaminari.model.family import CheckpointError

DEMO = Path(kaminari.__file__).parent / "demo" / "tokenizer.json"
PADDED_HEAD = 10


@cache
def demo() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO))


@cache
def byte_level() -> Tokenizer:
    """Every byte, two merges, special and shown added tokens, some outside the byte alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    vocab |= {"Ġa": 256, "ðŁ": 257}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "a"), ("ð", "Ł")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    shown = ["<tool_call>", "é", "two words", "你好", "naïve"]
    tokenizer.add_tokens([AddedToken(text, special=False) for text in shown])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|end|>", "<|im_start|>")])
    return tokenizer


def _pieces(decoder: decoders.Decoder) -> Tokenizer:
    """A vocabulary of word pieces with byte fallback, as sentencepiece models have it."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁▁", "▁Hello", "▁world", "a", "b", "ing", ",", "你", "�", "<0x", "x▁y", "\n", " ", " c"]
    vocab = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, *words])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


REPLACE = decoders.Replace("▁", " ")
STRIP = decoders.Strip(" ", 1, 0)


@cache
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "demo": demo(),
        "byte-level": byte_level(),
        "llama": _pieces(decoders.Sequence([REPLACE, decoders.ByteFallback(), decoders.Fuse(), STRIP])),
        "gemma": _pieces(decoders.Sequence([REPLACE, decoders.ByteFallback(), decoders.Fuse()])),
        "strip two": _pieces(
            decoders.Sequence([decoders.ByteFallback(), REPLACE, decoders.Fuse(), decoders.Strip(" ", 2, 0)])
        ),
        "metaspace": _pieces(decoders.Metaspace()),
        "metaspace first": _pieces(decoders.Metaspace(prepend_scheme="first")),
        "metaspace never": _pieces(decoders.Metaspace(prepend_scheme="never")),
        "metaspace bytes": _pieces(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])),
    }


NAMES = list(tokenizers())


def pushed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = DetokenizerFactory(tokenizer).new()
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def whole(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_ids_join_to_the_whole_decode(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizers()[name]
    size = tokenizer.get_vocab_size()
    # Bytes are drawn often, so that characters form, break off and are cut by other tokens.
    ids = st.one_of(st.integers(0, size + PADDED_HEAD), st.integers(0, 259), st.integers(size - 25, size))
    sequence = data.draw(st.lists(ids, max_size=40))
    assert "".join(pushed(tokenizer, sequence)) == whole(tokenizer, sequence)


@pytest.mark.parametrize("name", ["demo", "byte-level", "gemma"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_random_text_comes_back(name: str, text: str) -> None:
    tokenizer = tokenizers()[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pushed(tokenizer, ids)) == whole(tokenizer, ids)
    # An added token such as "é" is read by the decoder as a byte; all other text survives the way and back.
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    if name == "byte-level" and not any(spelling in text for spelling in added):
        assert "".join(pushed(tokenizer, ids)) == text


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40))
def test_random_bytes_are_read_as_the_reference_reads_them(data: bytes) -> None:
    tokenizer = byte_level()
    of_byte = {token_bytes(tokenizer.id_to_token(index))[0]: index for index in range(256)}
    joined = "".join(pushed(tokenizer, [of_byte[byte] for byte in data]))
    assert joined == data.decode("utf-8", errors="replace")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_byte_level_text_is_shown_with_the_last_byte_of_its_character(text: str) -> None:
    tokenizer = byte_level()
    of_byte = {token_bytes(tokenizer.id_to_token(index))[0]: index for index in range(256)}
    detokenizer = DetokenizerFactory(tokenizer).new()
    for character in text:
        *head, last = [of_byte[byte] for byte in character.encode()]
        assert [detokenizer.push(token) for token in head] == [""] * len(head)
        assert detokenizer.push(last) == character
    assert detokenizer.flush() == ""


def test_an_incomplete_character_ends_as_a_replacement() -> None:
    tokenizer = byte_level()
    ids = [tokenizer.token_to_id(token) for token in ("a", "ðŁ")]
    assert pushed(tokenizer, ids) == ["a", "", "\ufffd"]


def test_a_genuine_replacement_character_is_not_held_back() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("\ufffd", add_special_tokens=False).ids
    assert pushed(tokenizer, ids) == ["", "", "\ufffd", ""]


def test_special_tokens_are_hidden_and_other_added_tokens_shown() -> None:
    for name in ("byte-level", "gemma"):
        tokenizer = tokenizers()[name]
        special = "<|im_start|>" if name == "byte-level" else "</s>"
        ids = [tokenizer.token_to_id(token) for token in (special, "<tool_call>", special)]
        assert pushed(tokenizer, ids) == ["", "<tool_call>", "", ""]


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = byte_level()
    first, *rest = tokenizer.encode("ü", add_special_tokens=False).ids
    assert "".join(pushed(tokenizer, [first, tokenizer.token_to_id("<|end|>"), *rest])) == "ü"


def test_control_tokens_of_the_demo_are_never_shown() -> None:
    special = [index for index, token in demo().get_added_tokens_decoder().items() if token.special]
    assert len(special) >= 8
    assert "".join(pushed(demo(), special)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_ids_of_a_padded_head_give_no_text(name: str) -> None:
    tokenizer = tokenizers()[name]
    size = tokenizer.get_vocab_size()
    ids = [size, tokenizer.token_to_id("a"), size + 1, 2**31, tokenizer.token_to_id("b")]
    assert "".join(pushed(tokenizer, ids)) == "ab"


def test_a_negative_id_is_a_caller_s_mistake() -> None:
    with pytest.raises(OverflowError):
        pushed(byte_level(), [-1])


def test_the_leading_space_is_as_in_the_whole_decode() -> None:
    expected = {
        "llama": "Hello world",
        "gemma": " Hello world",
        "metaspace": "Hello world",
        "metaspace never": " Hello world",
    }
    for name, text in expected.items():
        tokenizer = tokenizers()[name]
        ids = [tokenizer.token_to_id(token) for token in ("<s>", "▁Hello", "▁world")]
        assert "".join(pushed(tokenizer, ids)) == text == whole(tokenizer, ids)


def test_a_run_of_byte_tokens_is_judged_at_its_end() -> None:
    """The reference replaces every byte of a run that is not all UTF-8: none is final before its end."""
    tokenizer = tokenizers()["gemma"]
    nihao = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "你好".encode()]
    comma = tokenizer.token_to_id(",")
    assert pushed(tokenizer, [*nihao, comma]) == [""] * 6 + ["你好,", ""]
    assert pushed(tokenizer, [*nihao[:-1], comma]) == [""] * 5 + ["\ufffd" * 5 + ",", ""]
    assert pushed(tokenizer, nihao) == [""] * 6 + ["你好"]


def test_choices_do_not_share_what_they_hold_back() -> None:
    factory = DetokenizerFactory(byte_level())
    first, second = factory.new(), factory.new()
    assert first.push(byte_level().token_to_id("ðŁ")) == ""
    assert second.push(byte_level().token_to_id("a")) == "a"
    assert second.flush() == ""
    assert first.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("byte-level", "a"),
        ("byte-level", "ð"),
        ("byte-level", "<|end|>"),
        ("llama", "▁world"),
        ("llama", "<0xE4>"),
        ("llama", "<s>"),
    ],
)
def test_a_long_answer_costs_the_same_per_token_to_its_end(name: str, spelling: str) -> None:
    """Bytes without end, skipped tokens without end: what hides text must not pile up work."""
    tokenizer = tokenizers()[name]
    token = tokenizer.token_to_id(spelling)
    count = 60_000
    detokenizer = DetokenizerFactory(tokenizer).new()
    start = time.process_time()
    parts = [detokenizer.push(token) for _ in range(count)]
    parts.append(detokenizer.flush())
    # A quadratic detokenizer needs minutes.
    assert time.process_time() - start < 5
    assert "".join(parts) == whole(tokenizer, [token] * count)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Strip(" ", 0, 1),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Fuse(), REPLACE]),
    ],
)
def test_a_decoder_that_cannot_be_followed_is_refused_by_name(decoder: decoders.Decoder | None) -> None:
    tokenizer = _pieces(decoders.Fuse())
    tokenizer.decoder = decoder
    with pytest.raises(CheckpointError, match="unsupported decoder in the tokenizer: "):
        DetokenizerFactory(tokenizer)


def test_a_vocabulary_without_a_plain_letter_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"▁": 0, "<0x41>": 1}, []))
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(CheckpointError, match="no token that is one letter"):
        DetokenizerFactory(tokenizer)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_grammar_sees_the_bytes_that_are_shown(name: str, data: st.DataObject) -> None:
    """Behind a letter: what the start of a text loses is not a token's own."""
    tokenizer = tokenizers()[name]
    table = token_table(tokenizer)
    letter = next(token_id for token_id, text in enumerate(table) if text == b"a")
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=12))
    written = b"".join(table[token_id] for token_id in ids)
    try:
        text = written.decode()
    except UnicodeDecodeError:
        return  # no grammar allows bytes that are no text
    assert "".join(pushed(tokenizer, [letter, *ids])) == "a" + text


def test_tokens_that_are_hidden_write_nothing_and_shown_ones_that_look_like_control_do() -> None:
    table = token_table(byte_level())
    assert table[byte_level().token_to_id("<|end|>")] == b""
    assert table[byte_level().token_to_id("<tool_call>")] == b"<tool_call>"
