"""What form an answer must have, in words that no API owns. Checked and compiled by `grammar`.

`field` of each says where the form stands in a request, for error messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON value that a schema describes."""

    schema: Mapping[str, Any] | bool
    field: str = "response_format"


@dataclass(frozen=True, slots=True)
class RegexFormat:
    """The whole answer matches a regular expression (syntax of Rust's `regex`)."""

    pattern: str
    field: str = "structured_outputs.regex"


@dataclass(frozen=True, slots=True)
class ChoiceFormat:
    """The answer is one of these strings."""

    choices: tuple[str, ...]
    field: str = "structured_outputs.choice"


@dataclass(frozen=True, slots=True)
class GrammarFormat:
    """The answer follows a context-free grammar, in Lark's or in GBNF's notation."""

    grammar: str
    field: str = "structured_outputs.grammar"


AnswerFormat = JsonFormat | RegexFormat | ChoiceFormat | GrammarFormat
