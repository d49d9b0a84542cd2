"""The decode step, captured once per number of rows and replayed: one call instead of hundreds.

A captured step reads its tokens, slots, lengths and positions from tensors that stay where they are, so all
that a step needs from the host is one small copy. There is a graph for every number of rows from 1 to the
recorder's `most_rows`, and no padding: a row of a replayed step is computed as in a step of that many rows.
Steps with more rows run as they would without graphs.

On CUDA a capture is a graph (`kaminari.model.attention.captures` says where there is one), on a CPU a program
of native calls. What is captured must take nothing from the host but shapes. Each capture keeps its logits to
itself; graphs share one pool of memory for all else, the largest first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from ctypes import CDLL
from typing import Any, Protocol

import torch
from torch import Tensor

from kaminari.model.attention import captures
from kaminari.model.cache import SlotCache
from kaminari.model.kernels.cpu_linear import BFLOAT_ROWS
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.kernels.native.program import Recording, Unrecordable

log = logging.getLogger("kaminari.engine")


class Recorder(Protocol):
    """What turns a function of fixed tensors into a replay of it: CUDA, the native kernels, or a fake.

    most_rows:  of a step that is worth recording
    """

    most_rows: int

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `step`. The replay returns the same tensor each time, filled anew.

        Raises RuntimeError for a step that cannot be recorded.
        """
        ...


def recorder_for(cache: SlotCache, device: torch.device) -> Recorder | None:
    """What records the decode steps over a cache, or None where nothing does."""
    if device.type == "cuda":
        return CudaRecorder(device) if captures(cache) else None
    library = native_kernels().library if device.type == "cpu" else None
    return None if library is None else ProgramRecorder(library)


class CudaRecorder:
    """Records by CUDA graphs, into one pool of memory."""

    most_rows = 16

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record behind one run on a side stream, in which kernels are built and libraries set up."""
        own = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(own)
        with torch.cuda.stream(side):
            output = step().clone()
        own.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            # memory of the pool would be written by graphs that were captured before
            output.copy_(step())

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class ProgramRecorder:
    """Records the native calls of a step, without making them, as a program with memory of its own."""

    most_rows = BFLOAT_ROWS

    def __init__(self, library: CDLL) -> None:
        self._library = library

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Raises `Unrecordable` for a step in which torch computes."""
        with Recording() as recording:
            output = step()
        program = recording.program(self._library)

        def replay() -> Tensor:
            program.run()
            return output

        return replay


class StepGraphs:
    """The captured decode steps of one engine.

    step:  called with a layout [3, R] of int64 on the device (slots, lengths after the step, positions);
           returns logits [R, vocab]. It may read tensors that stay where they are, and no host value that
           changes from step to step.
    """

    def __init__(self, step: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._step = step
        self._device = device
        self._layouts: dict[int, Tensor] = {}
        self._replays: dict[int, Callable[[], Tensor]] = {}

    def __contains__(self, rows: int) -> bool:
        return rows in self._replays

    def capture(self, cache: SlotCache, recorder: Recorder) -> None:
        """Capture the steps of every number of rows, as rows of slots 0, 1, ... of the cache.

        The slots are claimed anew, and a token may be written into each. A step that cannot be captured is
        logged, and it and all smaller ones run uncaptured.
        """
        for rows in range(min(cache.slots, recorder.most_rows), 0, -1):
            for slot in range(rows):
                cache.claim(slot)
            layout = torch.stack(
                [
                    torch.arange(rows, device=self._device),
                    torch.ones(rows, dtype=torch.int64, device=self._device),
                    torch.zeros(rows, dtype=torch.int64, device=self._device),
                ]
            )
            try:
                replay = recorder.record(lambda layout=layout: self._step(layout))  # type: ignore[misc]
            except Unrecordable as reason:
                log.info("decode steps are not recorded: %s", reason)
                return
            except RuntimeError:
                log.warning("decode steps of %d rows and fewer run uncaptured", rows, exc_info=True)
                return
            self._layouts[rows], self._replays[rows] = layout, replay

    def run(self, layout: Sequence[Sequence[int]]) -> Tensor:
        """Replay a step of a captured number of rows; its logits hold until that number runs again."""
        rows = len(layout[0])
        values = torch.tensor(layout, dtype=torch.int64)
        if self._device.type == "cuda":
            values = values.pin_memory()
        self._layouts[rows].copy_(values, non_blocking=True)
        return self._replays[rows]()
