"""Prompts for a loop's tests, as conversations and as the reference answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from kaminari.engine.conversation import Conversation, Message, PicturePart, Role, TextPart
from tests.engine.harness import picture
from tests.reference import Greedy, Reference, reference_greedy

TOKENS = 12
"""Of every answer."""

Turns = list[tuple[str, list[str | Image.Image]]]
Answers = Callable[[str], dict[str, Greedy]]
"""The reference's greedy answers to every prompt, by variant."""

PROMPTS: dict[str, Turns] = {
    "text": [("user", ["Hello, who are you?"])],
    "long text": [("user", ["one two three four five six seven " * 12])],
    "system": [("system", ["Be brief."]), ("user", ["What is 3+4?"])],
    "picture": [("user", [picture(96, 64, 1), "What is it?"])],
    "text around a picture": [("user", ["First: ", picture(70, 130, 2), " and then?"])],
    "two pictures": [("user", [picture(64, 64, 3), "or", picture(160, 40, 4), "?"])],
    "picture in an earlier turn": [
        ("user", [picture(128, 96, 5), "Read."]),
        ("assistant", ["It says 12."]),
        ("user", ["Are you sure?"]),
    ],
    "big picture": [("user", [picture(256, 256, 6), "Describe."])],
}

BAD = (
    Conversation(()),
    Conversation.ask("word " * 600),
    Conversation.ask("Read.", b"no picture"),
    Conversation.ask("Read.", *[picture(256, 256, seed) for seed in range(9)]),
)
"""Conversations that a context of 512 tokens refuses."""


def conversation(turns: Turns) -> Conversation:
    return Conversation(
        tuple(
            Message(Role(role), tuple(TextPart(p) if isinstance(p, str) else PicturePart(p) for p in parts))
            for role, parts in turns
        )
    )


def golden_answer(reference: Reference, turns: Turns, tokens: int = TOKENS) -> Greedy:
    images = [part for _, parts in turns for part in parts if not isinstance(part, str)]
    messages: list[dict[str, Any]] = []
    for role, parts in turns:
        content: Any = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts
        ]
        if all(isinstance(part, str) for part in parts):
            content = "".join(str(part) for part in parts)
        messages.append({"role": role, "content": content})
    return reference_greedy(reference, reference.render(messages), images, max_tokens=tokens)
