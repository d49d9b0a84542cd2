"""Log-probabilities in the words of the API, for answers that are whole and for pieces of them.

Strict JSON has no infinity: what is less likely than any number says stands at a floor.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from kaminari.engine.events import LikelyToken, TokenLogprobs

Json = dict[str, Any]

FLOOR = -9999.0


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> Json:
    """The object of a chat choice. Joined, `bytes` are the content, and what a stop string cut off."""
    content = [{**_entry(one.token), "top_logprobs": [_entry(rival) for rival in one.top]} for one in tokens]
    return {"content": content, "refusal": None}


def _entry(token: LikelyToken) -> Json:
    spelled = token.bytes.decode("utf-8", "replace") if token.spelling is None else token.spelling
    return {"token": spelled, "logprob": max(token.logprob, FLOOR), "bytes": list(token.bytes)}


class TextLogprobs:
    """The older form, four lists, with the place of each token in the text of one choice."""

    def __init__(self) -> None:
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def of(self, tokens: Sequence[TokenLogprobs]) -> Json:
        """The object of the next tokens. A token inside a character stands where the character does."""
        offsets = []
        for one in tokens:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(one.token.bytes))
        return {
            "text_offset": offsets,
            "token_logprobs": [max(one.token.logprob, FLOOR) for one in tokens],
            "tokens": [_name(one.token) for one in tokens],
            "top_logprobs": [_named(one) for one in tokens],
        }


def _named(one: TokenLogprobs) -> dict[str, float]:
    """The likeliest tokens by name; of two with one name, the likelier. The token itself is always there."""
    named: dict[str, float] = {}
    for token in (*one.top, one.token):
        named.setdefault(_name(token), max(token.logprob, FLOOR))
    return named


def _name(token: LikelyToken) -> str:
    """The text of a token; bytes that are no text are spelled as OpenAI spells them."""
    if token.spelling is not None:
        return token.spelling
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
