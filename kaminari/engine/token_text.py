"""What a single token adds to a text, as bytes: for log-probabilities, which name tokens one by one.

Joined over the tokens of an answer, the bytes are those of its text. Nothing here knows of requests.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from kaminari.engine.detokenizer import Vocabulary, decoder_steps, token_bytes

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """The tokens of one vocabulary. Remembers what it was asked: it belongs to one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises `CheckpointError` for a tokenizer without a plain letter to decode behind."""
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        kinds = [step["type"] for step in decoder_steps(tokenizer)]
        self._byte_fallback = "ByteFallback" in kinds
        self._anchor = None if kinds == ["ByteLevel"] else self._vocabulary.find_anchor()
        self._known: dict[tuple[int, bool], bytes] = {}

    def bytes_of(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes that a token adds; none where it is not shown or not known.

        `first`: no shown token stands before it, where some tokenizers drop a space.
        """
        key = (token_id, first)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._bytes(token_id, first)
        return found

    def spelling(self, token_id: int) -> str | None:
        """The name of a token that is not shown, a control token's spelling or `<123>`; None for others."""
        if self._vocabulary.shown(token_id) is not None:
            return None
        name: str | None = self._tokenizer.id_to_token(token_id)
        return f"<{token_id}>" if name is None else name

    def _bytes(self, token_id: int, first: bool) -> bytes:
        token = self._vocabulary.shown(token_id)
        if token is None:
            return b""
        if self._anchor is None:
            return token_bytes(token)
        if self._byte_fallback and (match := _BYTE.fullmatch(token)):
            return bytes.fromhex(match[1])
        if first:
            return self._vocabulary.decode([token_id]).encode()
        return self._vocabulary.decode([self._anchor, token_id])[1:].encode()
