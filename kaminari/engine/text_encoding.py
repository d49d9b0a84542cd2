"""From rendered text to token ids, exactly as the reference, but with text and control tokens kept apart.

The rendered prompt is cut at its control tokens; what lies between is encoded as text, in which a control
spelling is only text. Never truncates and never adds a token of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from transformers import PreTrainedTokenizerFast

from kaminari.engine.control_text import ControlEscape
from kaminari.engine.errors import RequestError
from kaminari.model.family import CheckpointError

# Composing characters (NFC) may save bytes: n bytes leave at least n / 4.
NFC_SHRINKS = 4
CHUNK = 65_536
# Unicode's White_Space, which is what the tokenizers library strips; Python's own notion has four more.
BLANKS = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True, slots=True)
class Control:
    """A control token in a rendered prompt."""

    token_id: int


Piece = Control | str


class TextEncoder:
    """A checkpoint's tokenizer, which it takes over. Safe to share between threads.

    tokenizer:    reads control spellings as text; decodes all ids
    special_ids:  ids of the control (special added) tokens
    escape:       hides control spellings in what people write, until `split` has seen the rendered prompt
    """

    def __init__(self, reference: PreTrainedTokenizerFast) -> None:
        self.tokenizer: Tokenizer = reference.backend_tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self.tokenizer.get_added_tokens_decoder()
        special = {token_id: token for token_id, token in added.items() if token.special}
        if any(token.single_word for token in special.values()):
            raise CheckpointError("control tokens that must stand alone as words are not supported")
        self.special_ids = frozenset(special)
        self.escape = ControlEscape(token.content for token in special.values())
        self._control = {token.content: token_id for token_id, token in special.items()}
        self._cut = re.compile("|".join(_control_patterns(special.values())))
        self._most_bytes = _bytes_per_token(self.tokenizer, [t for t in added.values() if not t.special])
        probe = "a b" + "".join(f"{spelling}c {spelling} d\n " for spelling in self._control)
        self.tokenizer.encode_special_tokens = False
        whole = self.tokenizer.encode(probe, add_special_tokens=False).ids
        self.tokenizer.encode_special_tokens = True
        if self.encode_pieces(self.split(probe)) != whole:
            raise CheckpointError(
                "this tokenizer encodes text differently beside a control token, which is not supported"
            )

    def split(self, rendered: str) -> Iterator[Piece]:
        """Cut an escaped prompt at its control tokens; runs of text come restored, and none is empty."""
        start = 0
        for match in self._cut.finditer(rendered):
            if match.start() > start:
                yield self.escape.restore(rendered[start : match.start()])
            token_id = self._control.get(match[0])
            yield Control(self._control[match[0].strip(BLANKS)] if token_id is None else token_id)
            start = match.end()
        if start < len(rendered):
            yield self.escape.restore(rendered[start:])

    def encode(self, text: str) -> list[int]:
        """Token ids of one run of text; control spellings in it are text."""
        # The batch call releases the GIL, which the plain `encode` holds all along.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """Token ids of a prompt that was split."""
        ids: list[int] = []
        for piece in pieces:
            ids.extend([piece.token_id] if isinstance(piece, Control) else self.encode(piece))
        return ids

    def least_tokens(self, text: str, enough: int) -> int:
        """A number of tokens that `text` has at least; stops counting where that is plainly above `enough`.

        Costs far less than `encode` where a text is far too long. Cutting a text in chunks may add a few
        tokens at each cut but never doubles them, so half of what the chunks have is a lower bound.
        """
        shrinks = 1 if text.isascii() else NFC_SHRINKS
        least = len(text.encode()) // (shrinks * self._most_bytes) if self._most_bytes else 0
        if least > enough or len(text) <= CHUNK:
            return least
        counted = 0
        for start in range(0, len(text), CHUNK):
            counted += len(self.encode(text[start : start + CHUNK]))
            if counted // 2 > enough:
                break
        return max(least, counted // 2)


def require_unicode(text: str, field: str) -> None:
    """Raise `RequestError` where a text cannot be encoded; `field` is where it came from."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("the text is not valid Unicode: it has a lone surrogate", field=field) from error


def _control_patterns(tokens: Iterable[AddedToken]) -> Iterator[str]:
    """A pattern for each control token with the blanks that it takes in, the longest token first."""
    for token in sorted(tokens, key=lambda token: len(token.content), reverse=True):
        spelling = re.escape(token.content)
        before = f"(?:(?<![{BLANKS}])[{BLANKS}]+)?" if token.lstrip else ""
        after = f"[{BLANKS}]*" if token.rstrip else ""
        yield before + spelling + after


def _bytes_per_token(tokenizer: Tokenizer, added: Iterable[AddedToken]) -> int:
    """Bytes of text in the longest token that text can become, 0 where that cannot be told."""
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        return 0
    if not isinstance(tokenizer.normalizer, normalizers.NFC | None):
        return 0
    # A byte-level token spells each of its bytes as one character; an added one is plain text.
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=False)), default=0)
    return max([longest, *(len(token.content.encode()) for token in added)])
