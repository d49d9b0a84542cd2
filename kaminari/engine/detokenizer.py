"""From token ids to text while an answer grows: what is shown is final, and joins to the whole decode.

The text pushed out, and then flushed, equals `Tokenizer.decode(all_ids, skip_special_tokens=True)` byte for
byte. Special tokens are skipped, added tokens that are not special (such as `<tool_call>`) are shown, and ids
that the tokenizer does not know (a head may be padded past the vocabulary) give no text. A token is looked at
once, so the cost of an answer is linear in its length. Nothing here knows of stop strings or of requests.
"""

from __future__ import annotations

import codecs
import json
import string
from collections.abc import Callable
from typing import Any, Protocol

from tokenizers import Tokenizer

from kaminari.model.family import CheckpointError


class Detokenizer(Protocol):
    """The text of one choice."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is now final, which may be empty."""
        ...

    def flush(self) -> str:
        """End the answer; return what was held back, with U+FFFD for bytes that never became a character."""
        ...


class DetokenizerFactory:
    """Makes a detokenizer per choice, for one tokenizer. Raises `CheckpointError` for an unknown decoder.

    The choices share the tokenizer, which nothing here changes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = Vocabulary(tokenizer)
        steps = decoder_steps(tokenizer)
        kinds = [step["type"] for step in steps]
        self._make: Callable[[], Detokenizer]
        if kinds == ["ByteLevel"]:
            self._make = lambda: ByteLevelDetokenizer(vocabulary)
        elif _works_by_segments(steps):
            byte_fallback = "ByteFallback" in kinds
            anchor = vocabulary.find_anchor()
            self._make = lambda: SegmentDetokenizer(vocabulary, anchor, byte_fallback)
        else:
            named = ", ".join(kinds) or "none"
            raise CheckpointError(f"unsupported decoder in the tokenizer: {named}")

    def new(self) -> Detokenizer:
        return self._make()


class Vocabulary:
    """What a tokenizer spells and what it hides."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        self._special = frozenset(token.content for token in added if token.special)

    def shown(self, token_id: int) -> str | None:
        """Return a token's spelling in the vocabulary, or None where it is special or unknown."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return None if token in self._special else token

    def decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def find_anchor(self) -> int:
        """Return a token that decodes to its own spelling, one ASCII letter or digit, and to no space."""
        for character in string.ascii_letters + string.digits:
            token_id = self._tokenizer.token_to_id(character)
            if token_id is not None and self.decode([token_id]) == character:
                return int(token_id)
        raise CheckpointError("the tokenizer has no token that is one letter or digit")


class ByteLevelDetokenizer:
    """For byte-level BPE: a token is bytes, and the answer is their concatenation read as UTF-8.

    At most three bytes are held back, those of a character that is not complete.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        token = self._vocabulary.shown(token_id)
        return "" if token is None else self._utf8.decode(token_bytes(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class SegmentDetokenizer:
    """For decoders that rewrite single tokens (Metaspace, Replace), runs of bytes, and the start of the text.

    The tokenizer decodes segments. A segment ends with a token that is not a byte: whether a run of byte
    tokens is text or U+FFFD per byte is known only at its end. Later segments are decoded behind an anchor,
    a plain letter that is cut off again, so that they do not count as the start of the text.
    """

    def __init__(self, vocabulary: Vocabulary, anchor: int, byte_fallback: bool) -> None:
        self._vocabulary = vocabulary
        self._byte_fallback = byte_fallback
        self._anchor = anchor
        self._pending: list[int] = []
        self._started = False

    def push(self, token_id: int) -> str:
        token = self._vocabulary.shown(token_id)
        if token is None:
            return ""
        self._pending.append(token_id)
        if self._byte_fallback and may_be_byte(token):
            return ""
        return self._decode()

    def flush(self) -> str:
        return self._decode() if self._pending else ""

    def _decode(self) -> str:
        if self._started:
            text = self._vocabulary.decode([self._anchor, *self._pending])[1:]
        else:
            # Until there is text, a decoder may still owe its rule for the start (a stripped space).
            text = self._vocabulary.decode(self._pending)
            if not text:
                return ""
            self._started = True
        self._pending.clear()
        return text


def token_bytes(token: str) -> bytes:
    """Return the bytes that a token of a byte-level vocabulary stands for.

    An added token is spelled in plain text: one with a character outside the byte alphabet is its own UTF-8,
    which is the rule of the `ByteLevel` decoder.
    """
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()


def may_be_byte(token: str) -> bool:
    """Whether a token has the form of a byte, `<0xE4>`."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the settings of a tokenizer's decoder, a sequence unrolled; empty where it has none."""
    if tokenizer.decoder is None:
        return []
    # The pickled state is the decoder's JSON; the tokenizer's own JSON would hold the vocabulary too.
    return _unrolled(json.loads(tokenizer.decoder.__getstate__()))


def _unrolled(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] == "Sequence":
        return [inner for part in step["decoders"] for inner in _unrolled(part)]
    return [step]


def _works_by_segments(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder rewrites nothing across tokens but runs of bytes and the start of the text."""
    fused = False
    for step in steps:
        match step:
            case {"type": "Metaspace" | "Replace" | "ByteFallback"} if not fused:
                pass
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "stop": 0}:
                pass
            case _:
                return False
    return bool(steps)
