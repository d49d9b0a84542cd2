"""Free memory goes back to the system once the engine has been idle, and never while it works."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from kaminari.engine import engine as engine_module
from kaminari.engine import heap
from kaminari.engine.answer import collect
from kaminari.engine.conversation import Conversation
from kaminari.engine.engine import Engine
from kaminari.engine.heap import IDLE_SECONDS, IdleHeap, share_heap, trimmer
from kaminari.engine.loading import load_model
from tests.engine.harness import GREEDY, settings
from tests.patience import PATIENCE

CPU = torch.device("cpu")
BLOCK, BLOCKS = 100_000, 1000  # below glibc's threshold for memory of its own, so that the heap holds them


def test_it_is_due_once_after_every_spell_of_work() -> None:
    given: list[None] = []
    idle = IdleHeap(lambda: given.append(None))
    assert idle.due == IDLE_SECONDS, "loading leaves something behind as well"
    idle.idle()
    assert (idle.due, len(given)) == (None, 1)
    idle.worked()
    idle.worked()
    assert (idle.due, len(given)) == (IDLE_SECONDS, 1), "nothing is given back by work"
    idle.idle()
    assert (idle.due, len(given)) == (None, 2)


def test_where_nothing_gives_back_nothing_is_due() -> None:
    idle = IdleHeap(None)
    idle.worked()
    assert idle.due is None
    idle.idle()


@pytest.mark.parametrize(("device", "platform"), [("cuda", "linux"), ("cpu", "darwin"), ("cpu", "win32")])
def test_other_devices_and_systems_have_no_trimmer(
    device: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert trimmer(torch.device(device)) is None


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Other:
        def mallopt(self, *_: object) -> None:
            asked.append("mallopt")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: Other())
    assert trimmer(CPU) is None
    share_heap()
    assert not asked


HEAPS = """
import ctypes, os, tempfile, threading
from kaminari.engine.heap import share_heap
share_heap()
threads = [threading.Thread(target=lambda: [bytearray(n) for n in range(1, 50_000, 7)]) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(file.read().count(b"<heap nr"))
"""


def test_threads_share_a_heap_once_they_are_told_to() -> None:
    if trimmer(CPU) is None:
        pytest.skip("no glibc")

    def heaps(program: str) -> int:
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)

    assert heaps(HEAPS) == 1
    assert heaps(HEAPS.replace("share_heap()\n", "")) > 1


def test_glibc_returns_pages_between_used_ones() -> None:
    """What a kept block holds fast at the heap's end would stay for good."""
    trim = trimmer(CPU)
    if trim is None:
        pytest.skip("no glibc")
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    blocks = [library.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:
        library.free(block)
    held = psutil.Process().memory_info().rss
    trim()
    assert held - psutil.Process().memory_info().rss > BLOCK * BLOCKS // 2
    library.free(blocks[-1])


def test_an_engine_gives_back_when_it_is_idle_and_not_while_it_works(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    running: list[Engine] = []

    def fake(device: torch.device) -> Callable[[], object]:
        assert device.type == "cpu"
        return lambda: given.append(
            threading.current_thread() is running[0]._thread and running[0]._loop.idle
        )

    monkeypatch.setattr(engine_module, "trimmer", fake)
    monkeypatch.setattr(heap, "IDLE_SECONDS", 0.2)
    asked = settings(tiny_checkpoint, slots=2, context=512)
    with Engine(lambda: load_model(asked), queue_size=8, stall_after=30.0) as engine:
        running.append(engine)
        _until(lambda: len(given) == 1)
        for number in range(2, 4):
            prompt = engine.prepare(Conversation.ask(f"What is {number}?"))
            collect(engine.submit(prompt, GREEDY))
            _until(lambda number=number: len(given) == number)  # type: ignore[misc]
    assert given == [True] * 3, "by the engine's own thread, with nothing to do"


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)
