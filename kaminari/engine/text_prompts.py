"""Prompts without a chat template: plain text, or token ids as they are; and the way back from ids to text.

Adds no token of its own. The spelling of a control token in a text is text; who wants the token gives its id.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kaminari.engine.errors import ContextLengthExceeded, RequestError
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.text_encoding import TextEncoder, require_unicode
from kaminari.model.family import PromptFormat


class TextPrompts:
    """The text side of one checkpoint. Safe to share between threads."""

    def __init__(self, encoder: TextEncoder, prompt_format: PromptFormat, context: int) -> None:
        """`context` is tokens per slot."""
        self._encoder = encoder
        self._format = prompt_format
        self._context = context

    def prepare(self, prompt: str | Sequence[int], field: str = "prompt") -> PreparedPrompt:
        """Make a prompt of a text, or of ids that the vocabulary has.

        Raises `RequestError` about `field`: nothing to read, no Unicode, longer than the context, or an id
        that stands for a picture.
        """
        started = time.perf_counter()
        token_ids = self._encode(prompt, field) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise RequestError(f"{field} must hold at least one token", field=field)
        if len(token_ids) >= self._context:
            raise ContextLengthExceeded(len(token_ids), self._context, field=field)
        marker = self._encoder.tokenizer.token_to_id(self._format.marker)
        if marker in token_ids:
            raise RequestError(
                f"{field} holds token {marker}, which stands for a picture; pictures need messages",
                field=field,
            )
        positions, offset = self._format.positions(token_ids, [False] * len(token_ids), [])
        return PreparedPrompt(
            tuple(token_ids), positions, offset, preprocess_seconds=time.perf_counter() - started
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids that the vocabulary has, control tokens spelled out."""
        text: str = self._encoder.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it; empty for a place in the vocabulary that is not used."""
        return [self._encoder.tokenizer.id_to_token(token) or "" for token in token_ids]

    def _encode(self, text: str, field: str) -> list[int]:
        require_unicode(text, field)
        least = self._encoder.least_tokens(text, self._context)
        if least >= self._context:
            raise ContextLengthExceeded(least, self._context, at_least=True, field=field)
        return self._encoder.encode(text)
