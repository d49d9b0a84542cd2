"""One prompt and the rows that go on from it, stepped by hand through the engine's scheduler and runner.

The one place in this room that knows their verbs. A step here is what a step of the engine is up to the
tokens' arrival on the host: planning, the model, sampling and the transfer; detokenizing and events are not.
"""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from typing import Any

from torch import Tensor

from kaminari.bench.ranges import SAMPLING, Marks
from kaminari.engine.drawn import Undrawn
from kaminari.engine.loading import LoadedModel
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import Job, PrefillChunk, Scheduler
from kaminari.engine.step_clock import StepClock
from kaminari.model.batch import RowLengths

SEED = 7


class Session:
    """`rows` slots of `capacity` tokens, and one greedy request with a choice in each slot.

    captured:  whether decode steps run captured, where they can be, as they do in the engine
    marks:     told of each step's begin and end, as of a range of sampling: of what lies around the model
    clock:     where their time goes, by part
    """

    def __init__(
        self,
        loaded: LoadedModel,
        rows: int,
        capacity: int,
        chunk: int,
        *,
        captured: bool = True,
        marks: Marks | None = None,
    ) -> None:
        self.clock = StepClock()
        kind = Runner if marks is None else partial(_MarkedRunner, marks)
        self._runner = kind(loaded.model, rows, capacity, loaded.end_token_ids, self.clock)
        if captured:
            self._runner.capture()
        self._scheduler = Scheduler(rows, chunk)
        self._capacity = capacity
        self._jobs = itertools.count(1)
        self._job = 0
        self.tokens: dict[int, list[int]] = {}

    def prefill(self, prompt: PreparedPrompt, rows: int) -> float:
        """Start anew with a prompt of text, and return the seconds until the first tokens are on the host."""
        self._leave()
        self._job = next(self._jobs)
        self.tokens = {choice: [] for choice in range(rows)}
        length = len(prompt.token_ids)
        params = SamplingParams(temperature=0.0, n=rows, ignore_eos=True)
        began = time.perf_counter()
        self._runner.add(self._job, prompt, params, SEED, [None] * rows)
        self._scheduler.add(Job(self._job, length, self._capacity - length, rows))
        while not self.tokens[0]:
            work = self._scheduler.plan().work
            assert isinstance(work, PrefillChunk)
            undrawn = self._runner.prefill(work)
            if undrawn is not None:
                self._keep(undrawn)
        return time.perf_counter() - began

    def narrow(self, rows: int) -> None:
        """Let all but the first `rows` rows end."""
        for choice in [choice for choice in self.tokens if choice >= rows]:
            del self.tokens[choice]
            self._scheduler.end(self._job, choice)

    def steps(self, count: int) -> list[float]:
        """Make `count` tokens per row; returns the seconds of each step.

        Raises `ValueError` where the slots are full.
        """
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            self.clock.start()
            rows = self._scheduler.plan().decode
            if not rows:
                raise ValueError(f"the slots hold no more than {self._capacity} tokens")
            self.clock.lap("plan")
            self._keep(self._runner.decode(rows))
            seconds.append(time.perf_counter() - began)
        return seconds

    def _keep(self, undrawn: Undrawn) -> None:
        tokens = self._runner.draw(undrawn, undrawn.rows).collect()
        self.clock.lap("collect")
        for drawn in tokens:
            if drawn.token is None:
                raise FloatingPointError("the model's logits are not finite")
            self.tokens[drawn.choice].append(drawn.token)

    def _leave(self) -> None:
        if self._job:
            self._scheduler.drop(self._job)
            self._runner.forget(self._job)


class _MarkedRunner(Runner):
    def __init__(self, marks: Marks, *args: Any) -> None:
        self._marks = marks
        super().__init__(*args)

    def _step(self, block: Tensor, host: RowLengths) -> tuple[Tensor, Tensor]:
        self._marks.enter(SAMPLING)
        try:
            return super()._step(block, host)
        finally:
            self._marks.leave()


def random_prompt(loaded: LoadedModel, length: int, seed: int = SEED) -> PreparedPrompt:
    """A prompt of `length` ordinary tokens, the same for the same seed."""
    frontend = loaded.frontend
    known = min(frontend.tokenizer.get_vocab_size(), loaded.info.vocab_size)
    chance = random.Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        token = chance.randrange(known)
        if token not in frontend.special_ids:
            ids.append(token)
    return frontend.texts.prepare(ids)
