"""Keeps the spelling of a control token in a person's words from becoming that token.

A template joins a person's words with its own control tokens in one string. Words are escaped before that
and restored after the string was cut at the control tokens, so that no spelling in them is ever seen there,
whole or put together from pieces that the template joins. Nothing else about the words changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Private-use characters. The sentinel itself is escaped like all else where it occurs in someone's words.
SENTINEL = "\U0010fffd"
_FIRST_CODE = 0x10FF00


class ControlEscape:
    """Escapes and restores text for one set of control spellings."""

    def __init__(self, spellings: Iterable[str]) -> None:
        by_start: dict[str, set[str]] = {}
        for spelling in filter(None, spellings):
            by_start.setdefault(spelling[0], set()).add(spelling[1:])
        hidden = sorted({SENTINEL, *by_start})
        self._code = {char: SENTINEL + chr(_FIRST_CODE + place) for place, char in enumerate(hidden)}
        self._char = {code: char for char, code in self._code.items()}
        self._hide = re.compile(
            "|".join([SENTINEL, *(_beginning(start, rests) for start, rests in sorted(by_start.items()))])
        )
        self._shown = re.compile(f"{SENTINEL}.", re.DOTALL)

    def escape(self, text: str) -> str:
        """Hide the first character of every control spelling, and of every beginning of one at the end."""
        return self._hide.sub(lambda match: self._code[match[0]], text)

    def escape_all(self, value: Any) -> Any:
        """Escape every string in a value made of lists and mappings, keys included."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self.escape_all(key): self.escape_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape_all(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """Undo `escape` in a text, or in any piece of one that cuts no escape in two."""
        return self._shown.sub(lambda match: self._char.get(match[0], match[0]), text)


def _beginning(start: str, rests: set[str]) -> str:
    """A pattern for the first character of a whole spelling, or of a part of one that ends the text.

    Blanks after such a part do not count: templates trim them, and then join what comes next.
    """
    parts = {rest[:length] for rest in rests for length in range(len(rest))}
    whole, cut = ("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) for texts in (rests, parts))
    return rf"{re.escape(start)}(?={whole}|(?:{cut})\s*\Z)" if parts else re.escape(start)
