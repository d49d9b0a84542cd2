"""What tests of packs run in a process of their own: see `test_loading_packs.elsewhere`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from tests.model.packs.packs import load_packed, reopened
from tests.model.steps import load


def print_peaks(checkpoint: str, pack: str) -> None:
    """How far memory rises while the model is loaded from its pack, and then without, in bytes."""
    folder = Path(checkpoint)
    opened = reopened(folder, Path(pack))
    packed = _peak(lambda: load_packed(folder, opened))
    json.dump([packed, _peak(lambda: load(folder))], sys.stdout)


def save_logits(checkpoint: str, pack: str, out: str) -> None:
    """Logits from the pack in float32 and in bfloat16, on two threads."""
    from tests.model.packs.test_loading_packs import logits

    torch.set_num_threads(2)
    folder = Path(checkpoint)
    opened = reopened(folder, Path(pack))
    dtypes = (torch.float32, torch.bfloat16)
    torch.save([logits(folder, load_packed(folder, opened, dtype)) for dtype in dtypes], out)


def _peak(work: Callable[[], object]) -> int:
    before = _own_bytes()
    highest = before
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.001):
            highest = max(highest, _own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = work()
    highest = max(highest, _own_bytes())
    done.set()
    watcher.join()
    del kept
    return highest - before


def _own_bytes() -> int:
    """Memory of this process that no file backs: what the files themselves take is dropped at need."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return (int(sizes["RssAnon"]) + int(sizes["RssShmem"])) * 1024
