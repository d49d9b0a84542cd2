"""The decode step, captured once per number of rows and replayed: one launch instead of hundreds.

A captured step reads its tokens, slots, lengths and positions from tensors that stay where they are, so all
that a step needs from the host is one small copy. There is a graph for every number of rows from 1 to
`MOST_ROWS`, and no padding: a row of a replayed step is computed as in a step of that many rows. Steps with
more rows run as they would without graphs.

What is captured must take nothing from the host but shapes (`kaminari.model.attention.captures` says where
that holds). The captures share one pool of memory, the largest first, and each keeps its logits to itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

log = logging.getLogger("kaminari.engine")

MOST_ROWS = 16


class Recorder(Protocol):
    """What turns a function of fixed tensors into a replay of it: CUDA, or a fake."""

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run `step` and record it. The replay returns the same tensor each time, filled anew."""
        ...


class CudaRecorder:
    """Records by CUDA graphs, into one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record behind one run on a side stream, in which kernels are built and libraries set up."""
        own = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(own)
        with torch.cuda.stream(side):
            step()
        own.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = step()

        def replay() -> Tensor:
            graph.replay()
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

    def capture(self, slots: int, recorder: Recorder) -> None:
        """Capture the steps of up to `slots` rows, as rows of slots 0, 1, ... that hold no token yet.

        It writes a token into each of these slots. A step that cannot be captured is logged, and it and all
        smaller ones run uncaptured.
        """
        for rows in range(min(slots, MOST_ROWS), 0, -1):
            layout = torch.stack(
                [
                    torch.arange(rows, device=self._device),
                    torch.ones(rows, dtype=torch.int64, device=self._device),
                    torch.zeros(rows, dtype=torch.int64, device=self._device),
                ]
            )
            try:
                replay = recorder.record(lambda layout=layout: self._step(layout))  # type: ignore[misc]
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
