"""The engine's door and its thread: many callers, a bounded queue, and every way to end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from kaminari.config import Folder, KernelChoice, ModelSettings, Settings
from kaminari.engine.answer import collect
from kaminari.engine.conversation import Conversation
from kaminari.engine.engine import CLOSING, Engine
from kaminari.engine.errors import (
    ContextLengthExceeded,
    EngineFault,
    EngineUnavailable,
    QueueFull,
    RequestError,
)
from kaminari.engine.events import Delta
from kaminari.engine.loading import load_model
from kaminari.engine.params import SamplingParams
from kaminari.model.family import CheckpointError
from kaminari.model.kernels import cpu_attention
from kaminari.model.kernels.native.build import native_kernels
from tests.engine.harness import GREEDY, picture, quiet, settings
from tests.patience import PATIENCE

LONG = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture
def engine(tiny_checkpoint: Path) -> Iterator[Engine]:
    with Engine.load(settings(tiny_checkpoint, slots=2, context=512)) as engine:
        yield engine


def until_free(engine: Engine, slots: int = 2) -> None:
    deadline = time.monotonic() + PATIENCE
    while engine.status().free_slots < slots or engine.status().waiting:
        assert time.monotonic() < deadline, engine.status()
        time.sleep(0.005)


def test_an_engine_without_native_kernels_leaves_anothers_alone(
    engine: Engine, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_kernels().library is None:
        pytest.skip(native_kernels().word)
    prompted: list[str] = []
    attend = cpu_attention.attend_prompt

    def watched(*inputs: Tensor) -> Tensor:
        prompted.append(threading.current_thread().name)
        return attend(*inputs)

    monkeypatch.setattr(cpu_attention, "attend_prompt", watched)
    question = Conversation.ask("Hello, who are you?")
    wanted = collect(engine.submit(engine.prepare(question), GREEDY)).text
    native = len(prompted)
    assert native
    plain = settings(tiny_checkpoint, slots=2, context=512)
    plain = plain.model_copy(update={"model": plain.model.model_copy(update={"kernels": KernelChoice.ATEN})})
    with Engine.load(plain) as other:
        assert other.info.kernels == "aten (switched off)"
        assert collect(other.submit(other.prepare(question), GREEDY)).text == wanted
        assert len(prompted) == native, "it took none"
        assert collect(engine.submit(engine.prepare(question), GREEDY)).text == wanted
        assert len(prompted) == 2 * native, "the first one's prompts are as they were"
    assert native_kernels().library is not None, "nor is this thread's choice another"


def test_info_says_what_runs(engine: Engine, tiny_checkpoint: Path) -> None:
    info = engine.info
    assert (info.model, info.family, info.device, info.dtype) == (
        tiny_checkpoint.name,
        "qwen3_vl",
        "cpu",
        "float32",
    )
    assert (info.slots, info.context, info.choices, info.demo) == (2, 512, 2, False)
    assert info.cache_bytes == engine._loop.runner.cache.nbytes()


def test_many_threads_get_the_answer_that_one_gets(engine: Engine) -> None:
    prompts = [
        engine.prepare(Conversation.ask(f"What is {n}?", picture(40 + 20 * n, 64, n))) for n in range(6)
    ]
    alone = [collect(engine.submit(prompt, GREEDY)).choices[0].token_ids for prompt in prompts]
    together: dict[int, list[int]] = {}

    def ask(index: int) -> None:
        together[index] = collect(engine.submit(prompts[index], GREEDY)).choices[0].token_ids

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(prompts))] == alone
    until_free(engine)


def until_held(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE
    while not engine._loop.held:
        assert time.monotonic() < deadline, engine.status()
        time.sleep(0.001)


def test_what_nobody_watches_waits_for_a_stream_that_is_prepared(engine: Engine) -> None:
    prompt = engine.prepare(Conversation.ask("What is 3?"))
    alone = collect(engine.submit(prompt, GREEDY, watched=False)).choices[0].token_ids
    with engine.expecting():
        unwatched = engine.submit(prompt, GREEDY, watched=False)
        until_held(engine)
        assert collect(engine.submit(prompt, GREEDY)).choices[0].token_ids == alone
        assert not unwatched._events, "it went on although another stream is on its way"
    assert collect(unwatched).choices[0].token_ids == alone
    until_free(engine)


def test_what_waits_for_a_stream_ends_when_it_is_aborted(engine: Engine) -> None:
    prompt = engine.prepare(Conversation.ask("What is 3?"))
    with engine.expecting():
        stream = engine.submit(prompt, LONG, watched=False)
        until_held(engine)
        stream.abort()
        until_free(engine)


def test_a_stream_that_never_comes_holds_nobody_up_for_good(engine: Engine) -> None:
    """Neither while it is prepared nor where its preparation fails."""
    prompt = engine.prepare(Conversation.ask("What is 3?"))
    with engine.expecting():
        assert collect(engine.submit(prompt, GREEDY, watched=False)).text is not None
    with pytest.raises(RequestError), engine.expecting():
        engine.prepare_text([10**9])
    assert engine._expected == 0
    assert collect(engine.submit(prompt, GREEDY, watched=False)).text is not None
    until_free(engine)


async def test_async_readers_and_one_that_leaves(engine: Engine) -> None:
    prompt = engine.prepare(Conversation.ask("Go on and on."))
    stay, leave = engine.submit(prompt, GREEDY), engine.submit(prompt, LONG)
    async for event in leave:
        if isinstance(event, Delta):
            break
    leave.abort()
    events = [event async for event in stay]
    assert len(events) > 2
    await asyncio.to_thread(until_free, engine)


def test_an_abandoned_iterator_frees_its_slot(engine: Engine) -> None:
    stream = engine.submit(engine.prepare(Conversation.ask("Go on.")), LONG)
    for _ in stream:
        break
    stream.abort()
    until_free(engine)
    assert engine.status().running == 0


def test_the_queue_is_bounded(tiny_checkpoint: Path) -> None:
    wanted = settings(tiny_checkpoint, slots=1, context=512)
    with Engine(lambda: load_model(wanted), queue_size=3, stall_after=60.0) as engine:
        prompt = engine.prepare(Conversation.ask("Go on."))
        streams = [engine.submit(prompt, LONG) for _ in range(3)]

        def submit_more() -> None:
            for _ in range(20):
                streams.append(engine.submit(prompt, LONG))

        with pytest.raises(QueueFull, match="3 requests"):
            submit_more()
        assert len(streams) <= 3 + 2, "three wait, one runs, one may have ended"
        for stream in streams:
            stream.abort()
        until_free(engine, 1)
        assert collect(engine.submit(prompt, GREEDY)).choices[0].token_ids


def test_what_cannot_run_is_refused_before_it_is_queued(engine: Engine, tiny_checkpoint: Path) -> None:
    prompt = engine.prepare(Conversation.ask("Hi."))
    with pytest.raises(RequestError) as caught:
        engine.submit(prompt, SamplingParams(n=3))
    assert caught.value.field == "n"
    with Engine.load(settings(tiny_checkpoint, slots=1, context=16)) as small:
        with pytest.raises(ContextLengthExceeded) as too_long:
            small.submit(prompt, GREEDY)
        assert too_long.value.limit == 16
        assert small.status().waiting == 0


def test_closing_tells_every_reader_and_takes_no_more(tiny_checkpoint: Path) -> None:
    engine = Engine.load(settings(tiny_checkpoint, slots=1, context=512))
    prompt = engine.prepare(Conversation.ask("Go on."))
    streams = [engine.submit(prompt, LONG) for _ in range(3)]
    engine.close()
    for stream in streams:
        with pytest.raises(EngineFault, match=CLOSING):
            collect(stream)
    with pytest.raises(EngineUnavailable):
        engine.submit(prompt, GREEDY)
    assert not engine.status().alive
    engine.close()


def test_a_broken_loop_is_dead_and_says_so(engine: Engine) -> None:
    prompt = engine.prepare(Conversation.ask("Hi."))

    def explode() -> None:
        raise RuntimeError("the scheduler has a bug")

    engine._loop.scheduler.plan = explode  # type: ignore[method-assign, assignment]
    with quiet("kaminari.engine"), pytest.raises(EngineFault, match="stopped"):
        collect(engine.submit(prompt, GREEDY))
    engine._thread.join(5)
    assert not engine.status().alive
    with pytest.raises(EngineUnavailable):
        engine.submit(prompt, GREEDY)


def test_a_stall_shows_while_work_waits_and_only_then(engine: Engine) -> None:
    engine._stall_after = 0.05
    assert not engine.status().stalled
    time.sleep(0.1)
    assert not engine.status().stalled, "an idle engine is not stalled"
    held = threading.Event()
    step = engine._loop.step
    engine._loop.step = lambda: (held.wait(10), step())[1]  # type: ignore[method-assign, func-returns-value]
    stream = engine.submit(engine.prepare(Conversation.ask("Hi.")), GREEDY)
    time.sleep(0.2)
    assert engine.status().stalled
    held.set()
    assert collect(stream).choices[0].token_ids
    assert not engine.status().stalled


def test_a_load_that_fails_raises_in_the_caller(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(CheckpointError, match="no such model folder"):
        Engine.load(Settings(model=ModelSettings(source=Folder(tmp_path / "missing"))))
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "kaminari-engine" and thread.is_alive()]


def test_warming_up_leaves_nothing(engine: Engine) -> None:
    cache = engine._loop.runner.cache
    assert all(not layer.keys.any() and not layer.values.any() for layer in cache.layers)  # type: ignore[attr-defined]
    assert engine.status().free_slots == 2


def test_a_script_that_forgets_to_close_ends_well() -> None:
    script = "from kaminari import Engine; engine = Engine.load(); print(engine.info.model)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "kaminari-demo"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
@pytest.mark.parametrize("depth", [1, 2])
def test_a_fork_of_a_program_with_an_engine_refuses_requests_and_ends(depth: int) -> None:
    """Threads stay behind: neither the engine's nor the one that runs its steps is there."""
    script = f"""
import os, signal, sys, time
from kaminari import Conversation, Engine, SamplingParams
from kaminari.config import EngineSettings, Settings
from kaminari.engine.errors import EngineUnavailable
engine = Engine.load(Settings(engine=EngineSettings(pipeline_depth={depth}, threads=1)))
prompt, params = engine.prepare(Conversation.ask("Hi.")), SamplingParams(max_tokens=4)
child = os.fork()
if not child:
    try:
        engine.submit(prompt, params)
    except EngineUnavailable:
        sys.exit(7)
    sys.exit(8)
until = time.monotonic() + 30
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
    time.sleep(0.05)
if not ended[0]:
    os.kill(child, signal.SIGKILL)
print(ended[0] and os.waitstatus_to_exitcode(ended[1]), len(list(engine.submit(prompt, params))) > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "7 True"), done.stderr
