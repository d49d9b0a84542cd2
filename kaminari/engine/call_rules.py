"""From a family's spelling of a call to rules in the grammar library's notation, which is Lark's.

Raw text becomes one lexeme that ends with the first closing tag, so that no text in it is taken for the end.
"""

from __future__ import annotations

import re

from kaminari.engine.grammar import Part, json_part, quote, regex_literal
from kaminari.engine.string_patterns import text_patterns
from kaminari.model.calls import (
    Either,
    JsonValue,
    Maybe,
    RawText,
    Repeated,
    Spelling,
    SpellingPart,
    Written,
)

_ANYTHING = "(?s:.*)"


class CallRules:
    """The grammar of one spelling.

    name:   of the rule that stands for all of it
    field:  where the schema stands in the request, for error messages
    rules:  that one and those that it needs
    parts:  grammars of their own, to which rules refer by name
    """

    def __init__(self, name: str, spelling: Spelling, field: str) -> None:
        """Raises `RequestError` and `kaminari.model.calls.UnspeakableArguments`."""
        self.name = name
        self.field = field
        self.rules: list[str] = []
        self.parts: list[Part] = []
        self.rules.append(f"{name}: {self._sequence(spelling)}")

    def _sequence(self, spelling: Spelling) -> str:
        return " ".join(map(self._expression, spelling))

    def _expression(self, part: SpellingPart) -> str:
        match part:
            case Written(text):
                return quote(text)
            case JsonValue(schema):
                name = f"{self.name}_value_{len(self.parts)}"
                self.parts.append({"name": name, **json_part(schema, self.field)})
                return f"@{name}"
            case RawText():
                return self._raw_text(part)
            case Either(options):
                return f"({' | '.join(map(self._sequence, options))})"
            case Maybe(parts):
                return f"({self._sequence(parts)})?"
            case Repeated(parts):
                return f"({self._sequence(parts)})*"

    def _raw_text(self, text: RawText) -> str:
        name = f"{self.name}_text_{len(self.rules)}"
        forms = []
        for place, form in enumerate(text.forms):
            wanted = map(regex_literal, text_patterns(form.schema) or [_ANYTHING])
            unwanted = (f"~{regex_literal(pattern)}" for pattern in form.unlike)
            forms.append(f"{name.upper()}_{place}")
            self.rules.append(f"{forms[-1]}: {' & '.join([*wanted, *unwanted])}")
        whole = f"({' | '.join(forms)})"
        if text.without:
            tags = "|".join(map(re.escape, text.without))
            whole += f" & ~{regex_literal(f'{_ANYTHING}({tags}){_ANYTHING}')}"
        self.rules.append(f"{name.upper()}: {whole}")
        self.rules.append(f"{name}[lazy]: {name.upper()} {quote(text.end)}")
        return name
