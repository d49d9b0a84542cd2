"""Decides what the device does next: a pure state machine without torch.

    plan()    -> what to launch now; counts it as scheduled at once
    end()     <- a choice is over (end token, stop string, length, fault)
    drop()    <- a job is over (aborted, failed)

A tick is at most one work item, which is one picture or one prefill chunk, then one decode step of all
active rows:

    tick 1     tick 2         tick 3           tick 4
    picture A  chunk A[0:64]  chunk A[64:90]   -
    decode B   decode B       decode B         decode A, B

so neither a long prompt nor a big picture stalls a stream by more than one item.

An answer that is streamed is watched; one that is sent whole is not. While a watched job runs, or is about
to come, what nobody watches does not even take that one item, for `PATIENCE` ticks at most: a chat page's own
calls for a title, tags and follow-ups come beside its chat, and nobody sees them wait. With jobs in the queue
nothing gives way, since slots that wait would keep others out.

What holds:
  1. Jobs get slots in order of arrival. A job claims the slots of all its choices at once, or waits. Work
     goes by that order too, except for jobs that give way; none gives way for more than `PATIENCE` ticks.
  2. A chunk runs only after every picture it needs was launched. Chunks are consecutive and never padded.
  3. The last chunk draws the first token of every choice; from the next plan on each choice decodes.
  4. A choice never has more than `max_tokens` tokens scheduled.
  5. Nothing here waits for results: plans may be made while earlier ones are in flight, since the device
     runs them in order. The pipeline drops the rows that ended meanwhile (`runs` tells).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kaminari.engine.slots import Owner, SlotPool

PATIENCE = 256
"""Ticks for which the prompt of a job that nobody watches gives way, in all."""


@dataclass(frozen=True, slots=True)
class Job:
    """What scheduling needs to know of a request.

    pictures:    (first, last + 1) prompt index of each picture's placeholders, in prompt order
    borders:     prompt indices at which a chunk has to end (a recurrent state is saved there)
    watched:     whether someone reads the answer while it is made
    """

    id: int
    prompt_tokens: int
    max_tokens: int
    choices: int = 1
    pictures: tuple[tuple[int, int], ...] = ()
    borders: tuple[int, ...] = ()
    watched: bool = True


@dataclass(frozen=True, slots=True)
class EncodePicture:
    job: int
    picture: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, stop) of a job. `slots` are those of all choices; the first is prefilled.

    last:  the chunk ends the prompt: the other slots become copies, and first tokens are drawn
    """

    job: int
    slots: tuple[int, ...]
    start: int
    stop: int
    last: bool


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One token of one choice.

    cached:  tokens in the slot before this step
    index:   number of the token that this step draws (the last chunk drew number 0)
    """

    job: int
    choice: int
    slot: int
    cached: int
    index: int


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token of every row."""

    rows: tuple[DecodeRow, ...]


WorkItem = EncodePicture | PrefillChunk
Item = WorkItem | DecodeStep


@dataclass(frozen=True, slots=True)
class StepPlan:
    work: WorkItem | None
    decode: tuple[DecodeRow, ...]

    def __bool__(self) -> bool:
        return self.work is not None or bool(self.decode)


@dataclass(slots=True)
class _Running:
    """A job with slots: what of it is scheduled.

    gave_way:  ticks in which it had work and let others go first
    drawn:     tokens per choice that is not over
    """

    job: Job
    slots: tuple[int, ...]
    encoded: int = 0
    prefilled: int = 0
    gave_way: int = 0
    drawn: dict[int, int] = field(default_factory=dict)


class Scheduler:
    """Waiting jobs, running jobs, and the slots between them."""

    def __init__(self, slots: int, prefill_chunk: int) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"a prefill chunk needs at least one token, not {prefill_chunk}")
        self.prefill_chunk = prefill_chunk
        self.slots = SlotPool(slots)
        self._waiting: deque[Job] = deque()
        self._running: dict[int, _Running] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, job: Job) -> None:
        """Queue a job. Raises `ValueError` for one that could never run."""
        if not 1 <= job.choices <= self.slots.slots:
            raise ValueError(f"a job of {job.choices} choices cannot run on {self.slots.slots} slots")
        if job.prompt_tokens < 1 or job.max_tokens < 1:
            raise ValueError("a job needs at least one prompt token and one token to make")
        self._waiting.append(job)

    def plan(self, *, expecting: bool = False) -> StepPlan:
        """Return the next step and count it as scheduled. An empty plan means that there is nothing to do.

        `expecting`: a watched job is about to come.
        """
        self._admit()
        decode = tuple(self._decode_rows())
        return StepPlan(self._next_work(expecting), decode)

    def runs(self, job: int, choice: int | None = None) -> bool:
        """Whether a job holds slots, or this choice of it does."""
        running = self._running.get(job)
        return running is not None and (choice is None or choice in running.drawn)

    def end(self, job: int, choice: int) -> bool:
        """A choice is over: its slot is given back. True where that was the job's last choice."""
        running = self._running[job]
        del running.drawn[choice]
        self.slots.release(running.slots[choice], Owner(job, choice))
        if running.drawn:
            return False
        del self._running[job]
        return True

    def drop(self, job: int) -> tuple[int, ...]:
        """Forget a job wherever it is, and free what it still holds. Returns the slots that it held."""
        running = self._running.pop(job, None)
        if running is None:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.id != job)
            return ()
        freed = tuple(running.slots[choice] for choice in running.drawn)
        for choice in running.drawn:
            self.slots.release(running.slots[choice], Owner(job, choice))
        return freed

    def check(self) -> None:
        """Raise `RuntimeError` where the scheduler's books do not agree with the slots'."""
        self.slots.check()
        held = {
            (run.slots[choice], run.job.id, choice) for run in self._running.values() for choice in run.drawn
        }
        owned = {(slot, owner.job, owner.choice) for slot, owner in self.slots.owners()}
        if held != owned:
            raise RuntimeError(f"running jobs hold {held}, the slots say {owned}")

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            slots = self.slots.claim(job.id, job.choices)
            if slots is None:
                return
            self._waiting.popleft()
            self._running[job.id] = _Running(job, slots, drawn=dict.fromkeys(range(job.choices), 0))

    def _next_work(self, expecting: bool) -> WorkItem | None:
        right_of_way = not self._waiting and (
            expecting or any(running.job.watched for running in self._running.values())
        )
        first: _Running | None = None
        for running in self._running.values():
            if running.prefilled == running.job.prompt_tokens:
                continue
            if right_of_way and not running.job.watched and running.gave_way < PATIENCE:
                running.gave_way += 1
            elif first is None:
                first = running
        return None if first is None else self._next_item(first)

    def _next_item(self, running: _Running) -> WorkItem:
        job, start = running.job, running.prefilled
        stop = min(start + self.prefill_chunk, job.prompt_tokens)
        stop = min([stop, *(border for border in job.borders if start < border < stop)])
        if running.encoded < len(job.pictures) and job.pictures[running.encoded][0] < stop:
            running.encoded += 1
            return EncodePicture(job.id, running.encoded - 1)
        running.prefilled = stop
        last = stop == job.prompt_tokens
        if last:
            running.drawn = dict.fromkeys(running.drawn, 1)
        return PrefillChunk(job.id, running.slots, start, stop, last)

    def _decode_rows(self) -> list[DecodeRow]:
        rows = []
        for running in self._running.values():
            for choice, drawn in running.drawn.items():
                if 0 < drawn < running.job.max_tokens:
                    cached = running.job.prompt_tokens + drawn - 1
                    rows.append(DecodeRow(running.job.id, choice, running.slots[choice], cached, drawn))
                    running.drawn[choice] = drawn + 1
        return rows
