"""kaminari: a local, OpenAI-compatible server for vision-language models.

The Python door:

>>> from kaminari import Conversation, Engine, SamplingParams, collect
>>> with Engine.load() as engine:  # the embedded demo model
...     prompt = engine.prepare(Conversation.ask("What is the total?", receipt_png))
...     print(collect(engine.submit(prompt, SamplingParams(temperature=0))).text)

The names are loaded when they are first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaminari.config import Settings
    from kaminari.engine.answer import Answer, collect
    from kaminari.engine.conversation import Conversation, Message, PicturePart, Role, TextPart
    from kaminari.engine.engine import Engine
    from kaminari.engine.params import SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "Answer": "kaminari.engine.answer",
    "Conversation": "kaminari.engine.conversation",
    "Engine": "kaminari.engine.engine",
    "Message": "kaminari.engine.conversation",
    "PicturePart": "kaminari.engine.conversation",
    "Role": "kaminari.engine.conversation",
    "SamplingParams": "kaminari.engine.params",
    "Settings": "kaminari.config",
    "TextPart": "kaminari.engine.conversation",
    "collect": "kaminari.engine.answer",
}

__all__ = [
    "Answer",
    "Conversation",
    "Engine",
    "Message",
    "PicturePart",
    "Role",
    "SamplingParams",
    "Settings",
    "TextPart",
    "collect",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kaminari' has no attribute {name!r}")
