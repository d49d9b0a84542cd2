"""Works on several tasks at once, on threads that end with it. Knows nothing of packs or weights.

It pays where the work lets go of Python's lock: hashing, reading, packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

Task = TypeVar("Task")
NAME = "kaminari-side-by-side"


@contextmanager
def side_by_side(
    tasks: Iterable[Task], work: Callable[[Task], object], threads: int
) -> Iterator[Iterator[Task]]:
    """Within the block: the tasks whose work is over, each as soon as it is.

    tasks:    drawn on the calling thread, in order, one more than are worked on
    work:     called with a task on another thread

    What `work` raises is raised by the iterator: of several tasks that failed, by the first in order. Once
    the block is left, however it is, no thread is.
    """
    with ThreadPoolExecutor(threads, NAME) as pool:
        running: dict[Future[object], Task] = {}
        try:
            yield _finished(iter(tasks), lambda task: pool.submit(work, task), running, threads + 1)
        finally:
            for future in running:
                future.cancel()


def _finished(
    tasks: Iterator[Task],
    begin: Callable[[Task], Future[object]],
    running: dict[Future[object], Task],
    most: int,
) -> Iterator[Task]:
    while True:
        while len(running) < most and (task := next(tasks, None)) is not None:
            running[begin(task)] = task
        if not running:
            return
        over, _ = wait(running, return_when=FIRST_COMPLETED)
        if any(future.exception() for future in over):
            # those before it in order were begun before it: waiting for them takes no longer than their work
            for future in running:
                future.result()
        for future in [future for future in running if future in over]:
            yield running.pop(future)
