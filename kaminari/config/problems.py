"""What is wrong with the settings, all of it in one report. Never shows a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

HIDDEN = "********"

_SHOWN_LENGTH = 80
_SENSITIVE = re.compile(r"key|kye|token|secret|passw|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    name:   the variables or flags that said it
    value:  what they said, as it may be shown; None where there is nothing to show
    """

    name: str
    value: str | None
    reason: str
    fix: str


class ConfigError(Exception):
    """Settings that cannot be used. `problems` holds every one that was found; the text is the report."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(report(self.problems))


def report(problems: Sequence[Problem]) -> str:
    """Spell the problems as plain text, one paragraph each."""
    count = "one setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
    lines = [f"kaminari cannot start: {count}"]
    for problem in problems:
        given = problem.name if problem.value is None else f"{problem.name} = {problem.value}"
        lines += ["", f"  {given}", f"      why: {problem.reason}", f"      fix: {problem.fix}"]
    return "\n".join(lines)


def shown(value: Any, *, secret: bool = False) -> str:
    """A value as a report may print it: on one line, not too long, hidden where it is secret."""
    if secret:
        return HIDDEN
    text = str(value)
    if not text.isprintable() or text != text.strip() or not text:
        text = repr(text)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}… ({len(text)} characters)"


def sounds_secret(*texts: str) -> bool:
    """Whether a misspelled name, or a text that cannot be read, may hold a secret."""
    return any(_SENSITIVE.search(text) for text in texts)


def closest(name: str, known: Iterable[str], cutoff: float = 0.65) -> str | None:
    """The known name that was most likely meant, or None.

    First a name that differs only in its separators and case, then one that ends in the same words (a
    setting looked for in the wrong group), then the most similar one, if its
    ratio, as `difflib` has it, is at least `cutoff`.
    """
    candidates = list(known)
    for key in (_letters, _last_part):
        same = [candidate for candidate in candidates if key(candidate) == key(name)]
        if len(same) == 1:
            return same[0]
    spelled = {candidate.upper(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.upper(), spelled, n=1, cutoff=cutoff)
    return spelled[matches[0]] if matches else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _last_part(name: str) -> str:
    return re.split(r"__|\.", name.lower().removeprefix("kaminari_"))[-1].strip("-_")
