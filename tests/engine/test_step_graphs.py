"""Captured decode steps: the same tokens as uncaptured ones, whoever comes and goes between the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kaminari.engine.conversation import Conversation
from kaminari.engine.events import Delta
from kaminari.engine.params import SamplingParams
from kaminari.engine.scheduler import DecodeRow
from kaminari.engine.step_block import Block, Draw, Orders, StepInputs, step_block
from kaminari.engine.step_graphs import CudaRecorder, Launched, Replay, Step, StepGraphs
from kaminari.engine.transfer import HostCopy
from kaminari.model import attention
from kaminari.model.batch import RowLengths
from kaminari.model.cache import SlotCache
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.hybrid import delta_net
from tests.engine.harness import HandLoop, cache_tensors, hand_loop, picture, poison
from tests.triton_kernels import triton_kernels

split_kv = triton_kernels("split_kv")

pytestmark = pytest.mark.on_device

SLOTS = 3
FAMILIES = ["tied-grouped", "qwen3_5", "minicpm_v"]


class Replays:
    """A recorder for any device: a replay runs the step again, with nothing from the host but what it had
    when it was recorded, into the tensor that it returned then. What the host counts stays as it is."""

    def __init__(self, most: int = 99, most_rows: int = 16) -> None:
        self.most = most
        self.most_rows = most_rows
        self.counted: list[GatedDeltaState] = []
        self.recorded: list[int] = []
        self.replayed: list[int] = []

    def record(self, step: Step, block: Tensor) -> Replay:
        logits, chosen = (output.clone() for output in step(block))
        rows = logits.shape[0]
        if rows > self.most:
            raise RuntimeError("out of memory")
        self.recorded.append(rows)

        def replay(given: Block) -> Launched:
            self.replayed.append(rows)
            block.copy_(torch.from_numpy(given))
            before = [list(layer._lengths) for layer in self.counted]
            for output, found in zip((logits, chosen), step(block), strict=True):
                output.copy_(found)
            for layer, lengths in zip(self.counted, before, strict=True):
                layer._lengths[:] = lengths
            return Launched(logits, chosen, HostCopy(chosen))

        return replay

    def finish(self) -> None:
        pass


@pytest.fixture
def on_device_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Triton kernels attend every decode step and torch run delta nets, on whatever device the tests
    run."""
    monkeypatch.setattr(attention.cpu_attention, "fits", lambda *_: False)
    monkeypatch.setattr(delta_net.cpu_delta, "fits", lambda *_: False)
    monkeypatch.setattr(attention, "_triton_kernels", lambda _: split_kv)


def warm(folder: Path, recorder: Replays | None) -> HandLoop:
    engine = hand_loop(folder, slots=SLOTS)
    engine.loop.runner._graphs._recorder = recorder
    if recorder is not None:
        for layer in engine.loop.runner.cache.layers:
            if isinstance(layer, GatedDeltaState):
                recorder.counted.append(layer)
                layer._in_place = False
    with torch.inference_mode():
        engine.loop.runner.warm_up()
    return engine


def tokens_of(engine: HandLoop) -> list[tuple[int, ...]]:
    """Requests that come, end and follow on used slots: of every number of rows, lengths and positions."""
    poison(engine.loop.runner.cache)
    first = engine.submit(
        Conversation.ask("Hello, who are you?"), SamplingParams(temperature=0, max_tokens=9)
    )
    engine.step(4)
    others = [
        engine.submit(Conversation.ask("What is it?", picture(96, 64, 1)), SamplingParams(temperature=0)),
        engine.submit(Conversation.ask("Draw."), SamplingParams(temperature=1, seed=3, max_tokens=14)),
        engine.submit(Conversation.ask("Again."), SamplingParams(temperature=0.5, seed=1, max_tokens=6)),
    ]
    engine.step(30)
    others[0].stream.abort()
    engine.run()
    for one in (first, *others):
        one.drain()
    tokens = [
        tuple(token for event in one.events if isinstance(event, Delta) for token in event.token_ids)
        for one in (first, *others)
    ]
    # a step in flight when its row is left may or may not have been read
    tokens[1] = tokens[1][:8]
    assert tokens[1]
    return tokens


@pytest.mark.usefixtures("depth", "on_device_lengths")
@pytest.mark.parametrize("variant", FAMILIES)
def test_replayed_steps_draw_the_same_tokens(variant: str, checkpoint: Callable[[str], Path]) -> None:
    recorder = Replays()
    engine = warm(checkpoint(variant), recorder)
    assert recorder.recorded == [3, 2, 1], "the largest first"
    found = tokens_of(engine)
    assert set(recorder.replayed) == {1, 2, 3}
    assert found == tokens_of(warm(checkpoint(variant), None))
    assert engine.is_clean()


@pytest.mark.usefixtures("on_device_lengths")
def test_a_step_that_was_not_captured_runs_all_the_same(checkpoint: Callable[[str], Path]) -> None:
    recorder = Replays(most_rows=2)
    engine = warm(checkpoint("qwen3_5"), recorder)
    assert recorder.recorded == [2, 1]
    assert tokens_of(engine) == tokens_of(warm(checkpoint("qwen3_5"), None))
    assert set(recorder.replayed) == {1, 2}


@pytest.mark.usefixtures("on_device_lengths")
def test_a_capture_that_fails_is_logged_and_nothing_is_captured(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Replays(most=2)
    with caplog.at_level(logging.WARNING):
        engine = warm(checkpoint("qwen3_5"), recorder)
    assert "decode steps of 3 rows and fewer run uncaptured" in caplog.text
    assert tokens_of(engine) == tokens_of(warm(checkpoint("qwen3_5"), None))
    assert recorder.replayed == []


@pytest.mark.usefixtures("on_device_lengths")
@pytest.mark.parametrize("variant", FAMILIES)
def test_a_capture_leaves_nothing_in_the_slots(variant: str, checkpoint: Callable[[str], Path]) -> None:
    cache = warm(checkpoint(variant), Replays()).loop.runner.cache
    assert all(not tensor.any() for tensor in cache_tensors(cache))
    for slot in range(SLOTS):
        cache.check_rows(RowLengths((slot,), (1,), (1,)))


@pytest.mark.usefixtures("on_device_lengths")
@pytest.mark.parametrize("variant", FAMILIES)
def test_a_row_that_does_not_fit_is_refused_before_the_replay(
    variant: str, checkpoint: Callable[[str], Path]
) -> None:
    recorder = Replays()
    engine = warm(checkpoint(variant), recorder)
    job = engine.submit(Conversation.ask("Hello")).id
    engine.step()
    recorder.replayed.clear()
    with torch.inference_mode(), pytest.raises(ValueError, match="no slot 7"):
        engine.loop.runner.decode([DecodeRow(job, 0, slot=7, cached=3, index=1)])
    assert recorder.replayed == []


def test_nothing_is_captured_where_the_host_must_know_the_lengths(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention without kernels that read them on the device; delta nets need none."""
    monkeypatch.setattr(attention, "_triton_kernels", lambda _: None)
    caches = [hand_loop(checkpoint(variant)).loop.runner.cache for variant in FAMILIES]
    assert not any(map(attention.captures, caches))
    monkeypatch.setattr(attention, "_triton_kernels", lambda _: split_kv)
    assert all(map(attention.captures, caches))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_a_replay_is_the_step() -> None:
    device = torch.device("cuda")
    table = torch.randn(4, 8, device=device)
    recorder = CudaRecorder(device)

    def step(block: Tensor) -> tuple[Tensor, Tensor]:
        inputs = StepInputs.of(block)
        chosen = inputs.positions + inputs.orders[1] + inputs.draws[4].long()
        return table[inputs.slots] * inputs.lengths[:, None], chosen

    graphs = StepGraphs(step, device, recorder)
    graphs.capture(SlotCache([], slots=3, capacity=1))
    assert all(rows in graphs for rows in (1, 2, 3))
    for slots, lengths in (([2, 0], [3, 5]), ([1, 3], [2, 7])):
        expected = table[slots] * torch.tensor(lengths, device=device)[:, None]
        wishes = [(Orders(biased=number), Draw(noise=2.0)) for number in (1, 2)]
        launched = graphs.run(step_block(slots, lengths, [10, 20], wishes))
        graphs.run(step_block([0, 1, 2], [9, 9, 9], [0, 0, 0]))
        assert torch.equal(launched.logits, expected), "a step of another number of rows took its memory"
        assert launched.ids.collect() == [13, 24]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("variant", FAMILIES)
def test_on_cuda_captured_steps_draw_the_same_tokens(variant: str, checkpoint: Callable[[str], Path]) -> None:
    recorder = CudaRecorder(torch.device("cuda", torch.cuda.current_device()))
    engine = hand_loop(checkpoint(variant), slots=SLOTS)
    engine.loop.runner._graphs._recorder = recorder
    with torch.inference_mode():
        engine.loop.runner.warm_up()
    assert all(rows in engine.loop.runner._graphs for rows in range(1, SLOTS + 1))
    assert tokens_of(engine) == tokens_of(warm(checkpoint(variant), None))
    assert engine.is_clean()
