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
from kaminari.model.kernels.native.program import Recording, Unrecordable, Worker

log = logging.getLogger("kaminari.engine")

Tensors = tuple[Tensor, ...]


class Recorder(Protocol):
    """What turns a function of fixed tensors into a replay of it: CUDA, the native kernels, or a fake.

    most_rows:  of a step that is worth recording
    """

    most_rows: int

    def record(self, step: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Record `step`. The replay begins it and returns the same tensors each time, filled anew once it is
        over.

        Raises RuntimeError for a step that cannot be recorded.
        """
        ...

    def wait(self) -> float:
        """Wait until a replay's tensors may be read in turn, where the device does not see to it. Returns the
        seconds that the step took, 0 where they are not known. Raises what went wrong in the step."""
        ...


def recorder_for(cache: SlotCache, device: torch.device, overlap: bool) -> Recorder | None:
    """What records the decode steps over a cache, or None where nothing does.

    overlap:  whether the host has something to do while a step runs
    """
    if device.type == "cuda":
        return CudaRecorder(device) if captures(cache) else None
    library = native_kernels().library if device.type == "cpu" else None
    return None if library is None else ProgramRecorder(library, overlap)


class CudaRecorder:
    """Records by CUDA graphs, into one pool of memory."""

    most_rows = 16

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Record behind one run on a side stream, in which kernels are built and libraries set up."""
        own = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(own)
        with torch.cuda.stream(side):
            outputs = tuple(output.clone() for output in step())
        own.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            # memory of the pool would be written by graphs that were captured before
            for output, found in zip(outputs, step(), strict=True):
                output.copy_(found)

        def replay() -> Tensors:
            graph.replay()
            return outputs

        return replay

    def wait(self) -> float:
        """Do nothing: the stream has an order."""
        return 0.0


class ProgramRecorder:
    """Records the native calls of a step, without making them, as a program with memory of its own.

    overlap:  programs run on a thread of their own, and a replay does not wait for its program
    """

    most_rows = BFLOAT_ROWS

    def __init__(self, library: CDLL, overlap: bool) -> None:
        self._library = library
        self._worker = Worker(library) if overlap else None

    def record(self, step: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Raises `Unrecordable` for a step in which torch computes."""
        with Recording() as recording:
            outputs = step()
        program = recording.program(self._library)
        worker = self._worker

        def replay() -> Tensors:
            if worker is None:
                program.run()
            else:
                worker.start(program)
            return outputs

        return replay

    def wait(self) -> float:
        """Wait for the program that runs, if one does."""
        return 0.0 if self._worker is None else self._worker.wait()


class StepGraphs:
    """The captured decode steps of one engine.

    step:      called with a layout [3, R] of int64 on the device (slots, lengths after the step, positions);
               returns tensors [R, ...]. It may read tensors that stay where they are, and no host value that
               changes from step to step.
    recorder:  None where nothing is captured
    """

    def __init__(
        self, step: Callable[[Tensor], Tensors], device: torch.device, recorder: Recorder | None
    ) -> None:
        self._step = step
        self._device = device
        self._recorder = recorder
        self._layouts: dict[int, Tensor] = {}
        self._replays: dict[int, Callable[[], Tensors]] = {}

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
            layout = torch.stack(
                [
                    torch.arange(rows, device=self._device),
                    torch.ones(rows, dtype=torch.int64, device=self._device),
                    torch.zeros(rows, dtype=torch.int64, device=self._device),
                ]
            )
            try:
                replay = self._recorder.record(lambda layout=layout: self._step(layout))  # type: ignore[misc]
            except Unrecordable as reason:
                log.info("decode steps are not recorded: %s", reason)
                break
            except RuntimeError:
                log.warning("decode steps of %d rows and fewer run uncaptured", rows, exc_info=True)
                break
            self._layouts[rows], self._replays[rows] = layout, replay
        for slot in range(cache.slots):
            cache.claim(slot)

    def run(self, layout: Sequence[Sequence[int]]) -> Tensors:
        """Begin a step of a captured number of rows. What it returns may be read behind `wait`, and holds
        until that number runs again."""
        rows = len(layout[0])
        if self._device.type == "cuda":
            values = torch.tensor(layout, dtype=torch.int64).pin_memory()
            self._layouts[rows].copy_(values, non_blocking=True)
        else:
            # without torch's own copy, which lets go of the GIL
            self._layouts[rows].numpy()[:] = layout
        return self._replays[rows]()

    def wait(self) -> float:
        """As of the recorder; nothing happens where no step runs."""
        return 0.0 if self._recorder is None else self._recorder.wait()
