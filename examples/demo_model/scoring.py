"""How well answers match: exact matches, and the characters that would have to be changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from kaminari.verify.edit_distance import edit_distance


@dataclass(slots=True)
class Score:
    """What came of one task in one style.

    edits:       characters to change, in all answers
    characters:  of all the right answers
    wrong:       question, right answer and given answer of each that is not exact
    """

    asked: int = 0
    exact: int = 0
    edits: int = 0
    characters: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, question: str, right: str, given: str) -> None:
        self.asked += 1
        self.characters += len(right)
        if given == right:
            self.exact += 1
        else:
            self.edits += edit_distance(given, right)
            self.wrong.append((question, right, given))

    @property
    def exact_rate(self) -> float:
        return self.exact / self.asked

    @property
    def character_error_rate(self) -> float:
        """Edits per character of the right answers; above 1 where answers are much too long."""
        return self.edits / self.characters
