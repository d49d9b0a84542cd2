"""Puts the battery's items to a server, one after the other, and says how each went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kaminari.smoke.battery import Ask, Item
from kaminari.smoke.client import ChatClient, Message, ServerError, Unreachable
from kaminari.smoke.pictures import data_url


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an item went.

    problem:  None where it passed, else what was wrong
    answers:  what the server said, up to and with the first wrong answer
    """

    item: Item
    problem: str | None
    answers: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return self.problem is None


def run_battery(client: ChatClient, model: str, items: Iterable[Item], max_tokens: int) -> Iterator[Outcome]:
    """Yield each item's outcome as it is known. An item ends with its first wrong or missing answer.

    Raises `Unreachable` where nothing answers from the start; a server that goes away later fails items.
    """
    heard = False
    for item in items:
        started = time.perf_counter()
        answers: list[str] = []
        try:
            problem = _run_item(client, model, item, max_tokens, answers)
        except Unreachable as error:
            if not heard:
                raise
            problem = str(error)
        except ServerError as error:
            problem = str(error)
        heard = True
        yield Outcome(item, problem, tuple(answers), time.perf_counter() - started)


def _run_item(client: ChatClient, model: str, item: Item, max_tokens: int, answers: list[str]) -> str | None:
    turns: list[Message] = []
    for ask in item.asks:
        if ask.fresh:
            turns = []
        turns.append(_message(ask))
        answer = client.answer(model, turns, max_tokens)
        answers.append(answer)
        objection = ask.expects.objection(answer)
        if objection is not None:
            return f"{ask.question!r}: {objection}"
        turns.append({"role": "assistant", "content": answer})
    return None


def _message(ask: Ask) -> Message:
    if not ask.pictures:
        return {"role": "user", "content": ask.question}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(draw())}} for draw in ask.pictures
    ]
    return {"role": "user", "content": [*parts, {"type": "text", "text": ask.question}]}
