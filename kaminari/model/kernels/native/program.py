"""Programs of native calls: recorded once while Python runs, and run again as one call without it.

While a thread records, a call of the library is not made but written down, with its pointers and numbers.
Whatever torch would compute meanwhile would be missing from the program, so it is refused: only memory is
handed out, and views of it. Memory comes from `Memory` and stays for as long as the program does.

What a program reads and writes apart from that memory (weights, caches, a step's block) is not kept alive
here. What the host reads while it records, such as counts of rows, is part of the program for good.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_MEMORY = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_VIEWS = {
    _aten.alias.default,
    _aten.as_strided.default,
    _aten.detach.default,
    _aten.expand.default,
    _aten.permute.default,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.squeeze.dim,
    _aten.t.default,
    _aten.transpose.int,
    _aten.unbind.int,
    _aten.unsqueeze.default,
    _aten.view.default,
    _aten.view.dtype,
    _aten._unsafe_view.default,
}
NO_MEMORY = 1
"""What a native call returns where memory ran out; any other number but 0 says that its rows do not fit."""

Words = np.ndarray[Any, np.dtype[np.int64]]

ROOM = 16
"""Programs that a worker knows of at once."""

_LINE = 64
_WORDS: dict[type, str] = {
    ctypes.c_void_p: "q",
    ctypes.c_int64: "q",
    ctypes.c_int32: "q",
    ctypes.c_float: "fxxxx",
}


class Unrecordable(RuntimeError):
    """Something was computed that no program can hold; the message names it."""


class _Thread(threading.local):
    recording: Recording | None = None


_thread = _Thread()


class Operation:
    """A function of the library: called at once, or written down where this thread records."""

    def __init__(self, name: str, function: Callable[..., Any], address: int, types: Sequence[type]) -> None:
        self.name = name
        self.address = address
        self._function = function
        self._words = struct.Struct("=" + "".join(_WORDS[each] for each in types))
        self.words = len(types)

    def __call__(self, *arguments: float | None) -> Any:
        recording = _thread.recording
        if recording is None:
            return self._function(*arguments)
        recording.append(self, self._words.pack(*(0 if each is None else each for each in arguments)))
        return 0


class Program:
    """Calls that run one after the other.

    Raises MemoryError or ValueError where one of them fails; those behind it are not made.
    """

    def __init__(
        self, library: ctypes.CDLL, calls: Sequence[tuple[Operation, bytes]], memory: Memory
    ) -> None:
        head = struct.Struct("=qq")
        self._names: dict[int, str] = {}
        code = bytearray()
        for operation, arguments in calls:
            self._names[len(code) // 8] = operation.name
            code += head.pack(operation.address, operation.words) + arguments
        self._code = np.frombuffer(bytes(code), dtype=np.int64)
        self._failed = ctypes.c_int64()
        self._call = library.kaminari_run
        self.words = (self._code.ctypes.data, len(self._code))
        self._memory = memory

    def run(self) -> None:
        self.check(self._call(*self.words, ctypes.addressof(self._failed)), self._failed.value)

    def check(self, failure: int, place: int) -> None:
        """Raise for what a run returned: not 0 where the call at this word failed."""
        if failure:
            name = self._names[place]
            if failure == NO_MEMORY:
                raise MemoryError(f"no memory for {name}")
            raise ValueError(f"{name}: the step's rows do not fit")


class Worker:
    """A thread without Python that runs programs one behind the other, with the threads of whoever asks.

    ran:  called with the seconds that a program took, once it was waited for

    Raises RuntimeError where there is no thread for it.
    """

    def __init__(self, library: ctypes.CDLL, ran: Callable[[float], object]) -> None:
        self._outcome = (ctypes.c_int64 * 3)()
        self._start = library.kaminari_worker_start
        self._over, self._wait = library.kaminari_worker_over, library.kaminari_worker_wait
        self._ran = ran
        self._last = 0
        # a ticket may be thrown away before its program is over
        self._asked: deque[tuple[object, ...]] = deque(maxlen=ROOM)
        self._worker = library.kaminari_worker()
        if self._worker is None:
            raise RuntimeError("no thread for another worker")
        weakref.finalize(self, _end, library, self._worker, os.getpid())

    def start(self, program: Program, given: Words, block: Tensor, chosen: Tensor) -> Ticket:
        """Ask for a program and return at once: it begins as soon as all that was asked for before is over.

        given:   copied into `block`, which the program reads, right before it
        chosen:  int64, what the program leaves for `Ticket.collect`
        """
        if given.nbytes != block.nbytes or chosen.dtype != torch.int64:
            raise ValueError(f"{given.nbytes} bytes for {block.nbytes}, and {chosen.dtype} to collect")
        found = np.empty(chosen.numel(), dtype=np.int64)
        before = (given.ctypes.data, block.data_ptr(), given.nbytes)
        behind = (chosen.data_ptr(), found.ctypes.data, found.nbytes)
        self._last = self._start(self._worker, *program.words, *before, *behind)
        self._asked.append((program, given, block, found))
        return Ticket(self, self._last, program, found)

    def finish(self) -> None:
        """Wait until nothing runs any more. What went wrong is told by the tickets alone."""
        if self._last:
            self._until(self._last)

    def outcome(self, number: int) -> tuple[int, int]:
        """Wait for one of the last `ROOM` programs; what `Program.check` takes."""
        failure, failed, nanoseconds = self._until(number)
        self._ran(nanoseconds / 1e9)
        return failure, failed

    def _until(self, number: int) -> tuple[int, int, int]:
        place = ctypes.addressof(self._outcome)
        # for what is over the GIL is kept: once given away it may be long in coming back
        if not self._over(self._worker, number, place):
            self._wait(self._worker, number, place)
        failure, failed, nanoseconds = self._outcome
        return failure, failed, nanoseconds


def _end(library: ctypes.CDLL, worker: int, process: int) -> None:
    """End a worker where it was started: a fork has none of its threads, and would wait for ever."""
    if os.getpid() == process:
        library.kaminari_worker_end(worker)


class Ticket:
    """A program that a worker was asked for, and what it leaves."""

    def __init__(self, worker: Worker, number: int, program: Program, found: Words) -> None:
        self._worker = worker
        self._number = number
        self._program = program
        self._found = found
        self._outcome: tuple[int, int] | None = None

    def wait(self) -> None:
        """Wait until it is over. Raises as `Program`."""
        if self._outcome is None:
            self._outcome = self._worker.outcome(self._number)
        self._program.check(*self._outcome)

    def collect(self) -> list[int]:
        """Wait, and return what it left. Raises as `Program`."""
        self.wait()
        found: list[int] = self._found.tolist()
        return found


class Memory:
    """Memory of one program.

    A block whose tensors are gone serves others: where Python had let go of a tensor while it recorded, no
    later call of the program reads it.
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, int, np.ndarray[Any, np.dtype[np.uint8]]]] = []
        self._numbers = 0

    def take(self, size: int) -> Tensor:
        """Return `size` bytes, uint8 and uninitialized, that begin on a cache line."""
        place = bisect_left(self._free, (size, -1))
        if place < len(self._free):
            number, block = self._free.pop(place)[1:]
        else:
            number, self._numbers = self._numbers, self._numbers + 1
            whole = np.empty(size + _LINE, dtype=np.uint8)
            first = -whole.ctypes.data % _LINE
            block = whole[first : first + size]
        # a tensor keeps the array that it was made from, and so do all its views
        lent = block[:size]
        back = weakref.finalize(lent, insort, self._free, (block.size, number, block))
        back.atexit = False
        return torch.from_numpy(lent)


class Recording:
    """Within its `with`, the calls of this thread are written down. Raises `Unrecordable`."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._guard = _Guard(self._memory)
        self._calls: list[tuple[Operation, bytes]] = []

    def __enter__(self) -> Recording:
        if _thread.recording is not None:
            raise RuntimeError("this thread records already")
        self._guard.__enter__()  # type: ignore[no-untyped-call]
        _thread.recording = self
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.recording = None
        self._guard.__exit__(*error)  # type: ignore[no-untyped-call]

    def append(self, operation: Operation, arguments: bytes) -> None:
        self._calls.append((operation, arguments))

    def program(self, library: ctypes.CDLL) -> Program:
        return Program(library, self._calls, self._memory)


def refuse(what: str) -> None:
    """Raise `Unrecordable` where this thread records: `what` is about to run, and no program can hold it."""
    if _thread.recording is not None:
        raise Unrecordable(what)


class _Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets torch make views and memory, which comes from `memory`, and nothing else."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _VIEWS:
            return func(*args, **kwargs)
        if func in _MEMORY:
            return self._empty(func(*args, **kwargs))
        with self:  # what is made of other operators is judged by those
            parts = func.decompose(*args, **kwargs)
        if parts is NotImplemented:
            raise Unrecordable(f"{func} is torch's")
        return parts

    def _empty(self, like: Tensor) -> Tensor:
        if like.device.type != "cpu":
            raise Unrecordable(f"memory on {like.device}")
        extent = 1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
        extent = extent if prod(like.shape) else 0
        memory = self._memory.take(max(1, extent) * like.dtype.itemsize)
        return memory.view(like.dtype).as_strided(like.shape, like.stride())
