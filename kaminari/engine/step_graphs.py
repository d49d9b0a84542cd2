"""The decode step, captured once per number of rows and replayed: one call instead of hundreds.

A captured step reads a block of numbers (`kaminari.engine.step_block`) and tensors that stay where they are,
so all that a step needs from the host is one small copy. There is a graph for every number of rows from 1 to
the recorder's `most_rows`, and no padding: a row of a replayed step is computed as in a step of that many
rows. Steps with more rows run as they would without graphs.

On CUDA a capture is a graph (`kaminari.model.attention.captures` says where there is one), on a CPU a program
of native calls. What is captured must take nothing from the host but shapes. Each capture keeps its logits to
itself; graphs share one pool of memory for all else, the largest first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kaminari.engine.drawn import Choices
from kaminari.engine.step_block import Block, step_block
from kaminari.engine.transfer import HostCopy
from kaminari.model.attention import captures
from kaminari.model.cache import SlotCache
from kaminari.model.kernels.cpu_linear import BFLOAT_ROWS
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.kernels.native.program import Recording, Unrecordable, Worker

log = logging.getLogger("kaminari.engine")

Step = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A decode step by a block on the device: logits [R, V], and the ids [R] int64 that it chose."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was begun.

    logits:  [R, V], and `chosen` [R] int64: of the same memory each time, filled anew
    ids:     what was chosen, on its way to the host
    ready:   waits until the tensors may be read, and raises what went wrong in the step; None where the
             device sees to the order. They must be read before a step of as many rows is launched
    """

    logits: Tensor
    chosen: Tensor
    ids: Choices
    ready: Callable[[], None] | None = None


Replay = Callable[[Block], Launched]


class Recorder(Protocol):
    """What turns a step into a replay of it: CUDA, the native kernels, or a fake.

    most_rows:  of a step that is worth recording
    """

    most_rows: int

    def record(self, step: Step, block: Tensor) -> Replay:
        """Record `step` by `block`. The replay fills the block anew, begins the step and returns; it may be
        called again before the step is over, and steps run in the order of the calls.

        Raises RuntimeError for a step that cannot be recorded.
        """
        ...

    def finish(self) -> None:
        """Wait until no step runs any more, where the device does not see to the order."""
        ...


def recorder_for(
    cache: SlotCache, device: torch.device, overlap: bool, ran: Callable[[float], object]
) -> Recorder | None:
    """What records the decode steps over a cache, or None where nothing does.

    overlap:  whether the host has something to do while a step runs
    ran:      called with the seconds of a step that ran beside the host, once it was waited for
    """
    if device.type == "cuda":
        return CudaRecorder(device) if captures(cache) else None
    library = native_kernels().library if device.type == "cpu" else None
    if library is None:
        return None
    return ProgramRecorder(library, Worker(library, ran) if overlap else None)


class CudaRecorder:
    """Records by CUDA graphs, into one pool of memory."""

    most_rows = 16

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, step: Step, block: Tensor) -> Replay:
        """Record behind one run on a side stream, in which kernels are built and libraries set up."""
        own = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(own)
        with torch.cuda.stream(side):
            logits, chosen = (output.clone() for output in step(block))
        own.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            # memory of the pool would be written by graphs that were captured before
            for output, found in zip((logits, chosen), step(block), strict=True):
                output.copy_(found)

        def replay(given: Block) -> Launched:
            block.copy_(torch.from_numpy(given).pin_memory(), non_blocking=True)
            graph.replay()
            return Launched(logits, chosen, HostCopy(chosen))

        return replay

    def finish(self) -> None:
        """Do nothing: the stream has an order."""


class ProgramRecorder:
    """Records the native calls of a step, without making them, as a program with memory of its own.

    worker:  runs the programs, and a replay does not wait for its own; without one they run at once
    """

    most_rows = BFLOAT_ROWS

    def __init__(self, library: CDLL, worker: Worker | None) -> None:
        self._library = library
        self._worker = worker

    def record(self, step: Step, block: Tensor) -> Replay:
        """Raises `Unrecordable` for a step in which torch computes."""
        with Recording() as recording:
            logits, chosen = step(block)
        program = recording.program(self._library)
        worker = self._worker

        def run(given: Block) -> Launched:
            block.numpy()[:] = given
            program.run()
            return Launched(logits, chosen, HostCopy(chosen))

        def start(given: Block) -> Launched:
            assert worker is not None
            ticket = worker.start(program, given, block, chosen)
            return Launched(logits, chosen, ticket, ticket.wait)

        return run if worker is None else start

    def finish(self) -> None:
        if self._worker is not None:
            self._worker.finish()


class StepGraphs:
    """The captured decode steps of one engine.

    step:      may read tensors that stay where they are, and no host value that changes from step to step
    recorder:  None where nothing is captured
    """

    def __init__(self, step: Step, device: torch.device, recorder: Recorder | None) -> None:
        self._step = step
        self._device = device
        self._recorder = recorder
        self._replays: dict[int, Replay] = {}

    def __contains__(self, rows: int) -> bool:
        return rows in self._replays

    def capture(self, cache: SlotCache) -> None:
        """Capture the steps of every number of rows, as rows of slots 0, 1, ... of the cache.

        The slots are claimed anew, before and after. A step that cannot be captured is logged, and it and all
        smaller ones run uncaptured.
        """
        if self._recorder is None:
            return
        for rows in range(min(cache.slots, self._recorder.most_rows), 0, -1):
            for slot in range(rows):
                cache.claim(slot)
            block = torch.from_numpy(step_block(range(rows), [1] * rows, [0] * rows)).to(self._device)
            try:
                self._replays[rows] = self._recorder.record(self._step, block)
            except Unrecordable as reason:
                log.info("decode steps are not recorded: %s", reason)
                break
            except RuntimeError:
                log.warning("decode steps of %d rows and fewer run uncaptured", rows, exc_info=True)
                break
        for slot in range(cache.slots):
            cache.claim(slot)

    def run(self, block: Block) -> Launched:
        """Begin a step of a captured number of rows."""
        return self._replays[block.shape[1]](block)

    def finish(self) -> None:
        """Wait until no step runs any more, where the device does not see to the order."""
        if self._recorder is not None:
            self._recorder.finish()
