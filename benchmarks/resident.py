"""What a model takes of memory while it serves on a CPU, beside what the plan says. For Linux alone.

    python -m benchmarks.resident --model FOLDER --dtype bfloat16 --slots 4 --context 2048
    python -m benchmarks.resident --model FOLDER --dtype bfloat16 --slots 4 --context 2048 --quantization PACK

Counts memory that no file backs. What the process takes before a weight is read (Python, libraries, the
tokenizer) is taken off: weights, cache, tables and scratch are left, then every slot is filled, and a picture
is read in each. "idle" is what stays then: Python's garbage is collected, and the heap's free pages go back
once the engine has been idle; so they do before the first reading. Threads share a heap, as in `kaminari
serve`. All on the CPU, in GiB.
"""

from __future__ import annotations

import argparse
import gc
import io
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from kaminari import Conversation, Engine, SamplingParams, collect
from kaminari.config import load_settings
from kaminari.engine.frontend import Frontend
from kaminari.engine.heap import IDLE_SECONDS, share_heap, trimmer
from kaminari.engine.loading import picture_rules, plan_model
from kaminari.engine.prompt import PreparedPrompt

GIB = 2**30
TOKENS = 8


class Watch:
    """The most that the process has taken since it was asked last."""

    def __init__(self) -> None:
        self._most = resident()
        threading.Thread(target=self._watch, daemon=True).start()

    def most(self) -> int:
        most, self._most = max(self._most, resident()), resident()
        return most

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(0.005):
            self._most = max(self._most, resident())


def resident() -> int:
    """Bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return (sizes["RssAnon"] + sizes["RssShmem"]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory of a model that serves, planned and measured.")
    parser.add_argument("--model", default="demo", help="a checkpoint's folder")
    parser.add_argument("--quantization", default="none", help="a pack's folder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--slots", default="4")
    parser.add_argument("--context", default="2048")
    parser.add_argument("--threads", default="auto")
    args = parser.parse_args()
    share_heap()
    settings = load_settings(
        {
            "model.source": args.model,
            "model.quantization": args.quantization,
            "model.dtype": args.dtype,
            "model.device": "cpu",
            "engine.slots": args.slots,
            "engine.context": args.context,
            "engine.threads": args.threads,
        }
    )
    plan = plan_model(settings)
    frontend = Frontend(
        plan.folder, plan.prompt_format, picture_rules(settings.pictures), plan.capacity.context
    )
    gc.collect()
    if (trim := trimmer(plan.device)) is not None:
        trim()
    before = resident()
    watch = Watch()
    # its memory is taken again by the engine's own
    del frontend
    gc.collect()
    capacity = plan.capacity
    planned = capacity.weight_bytes + capacity.cache_bytes + capacity.table_bytes
    with Engine.load(settings) as engine:
        print(
            f"{engine.info.model}, {engine.info.quantization}, {capacity.slots} slots of {capacity.context}"
        )
        print(f"the process before it {before / GIB:.3f}, and on top of that:")
        print(
            f"planned {planned / GIB:.3f}: weights {capacity.weight_bytes / GIB:.3f}, cache "
            f"{capacity.cache_bytes / GIB:.3f}, tables {capacity.table_bytes / GIB:.3f}"
        )
        print(_line("loaded", watch, before))
        words = [f"{number} " + "word " * (capacity.context // 2) for number in range(capacity.slots)]
        _answer(engine, [engine.prepare(Conversation.ask(each)) for each in words])
        print(_line("slots half full", watch, before))
        pictures = [_picture(number) for number in range(capacity.slots)]
        _answer(engine, [engine.prepare(Conversation.ask("What is it?", each)) for each in pictures])
        print(_line("pictures read", watch, before))


def _answer(engine: Engine, prompts: Sequence[PreparedPrompt]) -> None:
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    for handle in [engine.submit(prompt, params) for prompt in prompts]:
        collect(handle)


def _picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((512, 512), 20 + number).convert("RGB").save(file, format="PNG")
    return file.getvalue()


def _line(what: str, watch: Watch, before: int) -> str:
    """What was taken at most until now, and what stays of it once the engine has been idle."""
    gc.collect()
    time.sleep(2 * IDLE_SECONDS)
    return f"{what}: idle {(resident() - before) / GIB:.3f}, at most {(watch.most() - before) / GIB:.3f}"


if __name__ == "__main__":
    main()
