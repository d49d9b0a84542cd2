"""Programs of native calls: what they hold, what they refuse, whose memory is whose, and how they fail."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.kernels import cpu_attention, cpu_rows
from kaminari.model.kernels.cpu_linear import linear_kernel
from kaminari.model.kernels.cpu_norm import rms_norm
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.kernels.native.library import SIGNATURES
from kaminari.model.kernels.native.program import (
    NO_MEMORY,
    ROOM,
    Memory,
    Operation,
    Program,
    Recording,
    Ticket,
    Unrecordable,
    Worker,
)

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["inference", "no_grad"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.inference_mode() if request.param else torch.no_grad():
        yield


def record(step: Callable[[], Tensor]) -> tuple[Program, Tensor]:
    library = native_kernels().library
    assert library is not None
    with Recording() as recording:
        output = step()
    return recording.program(library), output


def test_what_a_decode_step_calls_may_be_recorded_and_packing_may_not() -> None:
    library = native_kernels().library
    recordable = {name for name in SIGNATURES if isinstance(getattr(library, name), Operation)}
    assert recordable >= {
        *(f"kaminari_{kind}_linear" for kind in ("float", "bfloat", "int8", "int4")),
        *(f"kaminari_{name}" for name in ("attend", "delta_step", "rms_norm", "turn", "swiglu")),
        *(f"kaminari_{name}" for name in ("pick", "place", "narrow", "add", "gate", "turns", "stamp")),
        *(f"kaminari_{name}" for name in ("greedy", "choose", "leave")),
    }
    assert not any(name.endswith(("_pack", "_bytes", "_run", "_threads")) for name in recordable)
    assert not any("worker" in name for name in recordable)


def test_a_program_reads_its_inputs_anew_at_every_run() -> None:
    x = torch.randn(3, 40)
    weight = torch.randn(40)
    program, output = record(lambda: cpu_rows.add(rms_norm(x, weight, 1e-6, centred=False), x))
    for seed in range(3):
        x.copy_(torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)))
        program.run()
        assert torch.equal(output, cpu_rows.add(rms_norm(x, weight, 1e-6, centred=False), x))


def test_a_call_is_written_down_and_not_made() -> None:
    x, keys = torch.randn(1, 2, 16), torch.zeros(2, 2, 8, 16)
    layout = torch.tensor([1]), torch.tensor([1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    values = torch.zeros_like(keys)
    program, _ = record(lambda: cpu_attention.attend(x, x, x, keys, values, *layout))
    assert not keys.any()
    program.run()
    assert keys[1].any()
    assert not keys[0].any()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_threads_change_nothing(count: int) -> None:
    """Layers that hand pieces of many sizes to the same threads, many times over."""
    weights = [torch.randn(800, 400), torch.randn(400, 800), torch.randn(33, 400)]
    kernels = [linear_kernel(weight, CPU, torch.float32) for weight in weights]
    x = torch.randn(7, 400)

    def step() -> Tensor:
        hidden = x
        for _ in range(20):
            for kernel in kernels[:2]:
                assert kernel is not None
                hidden = kernel.multiply(hidden)
            hidden = rms_norm(cpu_rows.add(hidden, x), ones, 1e-6, centred=False)
        assert kernels[2] is not None
        return kernels[2].multiply(hidden)

    ones = torch.ones(400)
    torch.set_num_threads(1)
    expected = step()
    program, output = record(step)
    torch.set_num_threads(count)
    for _ in range(50):
        output.zero_()
        program.run()
        assert torch.equal(output, expected)


COMPUTED: dict[str, Callable[[Tensor], object]] = {
    "a sum": lambda x: x + x,
    "in place": lambda x: x.add_(1),
    "a copy": lambda x: x[:, ::2].contiguous(),
    "a copy by its shape": lambda x: x.t().reshape(-1),
    "a conversion": lambda x: x.int(),
    "a product": lambda x: F.linear(x, x),
    "joined": lambda x: torch.cat((x, x)),
    "zeros": lambda x: torch.zeros_like(x),
    "ones": lambda x: x.new_ones(3),
    "numbers of the host": lambda x: torch.tensor([1, 2]),
    "a range": lambda x: torch.arange(3),
    "a number for the host": lambda x: x[0, 0].item(),
    "a write": lambda x: x[0].fill_(1),
    "chance": lambda x: torch.rand(3),
    "an index": lambda x: x[torch.ones(2, dtype=torch.int64)],
    "memory elsewhere": lambda x: torch.empty(3, device="meta"),
}


@pytest.mark.parametrize("what", COMPUTED)
def test_what_torch_would_compute_is_refused(what: str) -> None:
    x = torch.randn(4, 8)
    before = x.clone()
    with pytest.raises(Unrecordable):
        record(lambda: COMPUTED[what](x))  # type: ignore[arg-type, return-value]
    assert torch.equal(x, before)
    assert torch.equal(x + x, before * 2), "torch computes again outside"


def test_views_and_memory_are_torch_s() -> None:
    x = torch.randn(4, 24)

    def step() -> Tensor:
        heads = x.view(4, 6, 4)
        _, k, _ = heads.split_with_sizes((2, 2, 2), dim=1)
        picked = cpu_rows.gate(cpu_rows.add(heads, heads), heads)
        narrow = picked.flatten(1).unsqueeze(0).squeeze(0).reshape(4, 24).chunk(2, dim=-1)[0]
        assert narrow.shape == (4, 12)
        assert k.float() is k
        empty = torch.empty_like(x), x.new_empty(0, 3), torch.empty(3, 2).t()
        assert [tuple(each.shape) for each in empty] == [(4, 24), (0, 3), (2, 3)]
        return picked

    program, output = record(step)
    program.run()
    assert torch.equal(output, cpu_rows.gate(2 * x.view(4, 6, 4), x.view(4, 6, 4)))


def test_memory_that_python_let_go_of_serves_again_and_no_other_does() -> None:
    memory = Memory()
    first = memory.take(100)
    second = memory.take(100)
    assert not overlap(first, second)
    assert first.data_ptr() % 64 == second.data_ptr() % 64 == 0
    place, view = first.data_ptr(), first[10:20]
    del first
    third = memory.take(90)
    assert not overlap(third, view), "a view holds what it looks at"
    del view, third
    fourth, fifth = memory.take(80), memory.take(90)
    assert place in (fourth.data_ptr(), fifth.data_ptr())
    assert not overlap(fourth, fifth)


def test_a_step_of_many_layers_takes_the_memory_of_few() -> None:
    x = torch.randn(4, 1000)

    def step(layers: int) -> Tensor:
        hidden = x
        for _ in range(layers):
            hidden = cpu_rows.add(hidden, x)
        return hidden

    program, output = record(lambda: step(100))
    assert program._memory._numbers <= 3
    program.run()
    assert torch.allclose(output, x * 101)


def test_a_program_outlives_what_recorded_it_and_its_other_runs() -> None:
    """Programs share nothing: what one leaves stays while another runs."""
    x = torch.randn(3, 500)
    steps = [lambda: cpu_rows.add(cpu_rows.add(x, x), x), lambda: cpu_rows.add(x, x)]
    recorded = [record(step) for step in steps]
    for _ in range(3):
        for order in itertools.permutations(range(2)):
            for each in order:
                recorded[each][0].run()
            assert torch.allclose(recorded[0][1], 3 * x)
            assert torch.equal(recorded[1][1], 2 * x)


@pytest.mark.parametrize("count", [1, 3])
def test_a_call_that_fails_ends_the_run_and_is_named(count: int) -> None:
    table, index = torch.randn(5, 8), torch.tensor([1, 4])
    program, output = record(lambda: cpu_rows.add(picked := cpu_rows.pick(table, index), picked))
    torch.set_num_threads(count)
    output.zero_()
    for wrong in (5, -1, 2**62):
        index[1] = wrong
        with pytest.raises(ValueError, match="kaminari_pick: the step's rows do not fit"):
            program.run()
        assert not output.any(), "the calls behind it are not made"
    index[1] = 0
    program.run()
    assert torch.equal(output, 2 * table[index])


def test_no_memory_is_a_memory_error() -> None:
    x = torch.randn(2, 8)
    program, _ = record(lambda: cpu_rows.add(x, x))
    program._call = lambda *_: NO_MEMORY
    with pytest.raises(MemoryError, match="no memory for kaminari_add"):
        program.run()


def test_only_the_thread_that_records_is_recorded() -> None:
    x = torch.randn(2, 8)
    found: list[Tensor] = []

    def step() -> Tensor:
        other = threading.Thread(target=lambda: found.append(cpu_rows.add(x, x) * 2))
        other.start()
        other.join()
        return cpu_rows.add(x, x)

    program, output = record(step)
    assert torch.equal(found[0], 4 * x)
    program.run()
    assert torch.equal(output, 2 * x)


def test_a_recording_that_fails_leaves_the_thread_free() -> None:
    with pytest.raises(KeyError), Recording():
        raise KeyError
    x = torch.randn(2, 8)
    assert torch.equal(cpu_rows.add(x, x), x + x)
    with Recording(), pytest.raises(RuntimeError, match="records already"), Recording():
        pass


def overlap(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes


class Hand:
    """A worker that runs a program by a block that nothing reads, and keeps what `chosen` holds then."""

    def __init__(self) -> None:
        library = native_kernels().library
        assert library is not None
        self.seconds: list[float] = []
        self.worker = Worker(library, self.seconds.append)
        self.block = torch.zeros(2, 3, dtype=torch.int64)

    def start(self, program: Program, chosen: Tensor, number: int = 0) -> Ticket:
        given = np.full((2, 3), number, dtype=np.int64)
        return self.worker.start(program, given, self.block, chosen)


NOTHING = torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_runs_programs_beside_this_thread(threads: int) -> None:
    torch.set_num_threads(threads)
    x, weight = torch.randn(5, 4000), torch.randn(4000)
    program, output = record(lambda: rms_norm(x, weight, 1e-6, centred=False))
    hand = Hand()
    for round_ in range(200):
        x.fill_(round_ + 1.0)
        hand.start(program, NOTHING).wait()
        assert torch.equal(output, rms_norm(x, weight, 1e-6, centred=False)), round_
    assert len(hand.seconds) == 200
    assert min(hand.seconds) > 0
    hand.worker.finish()
    assert len(hand.seconds) == 200, "a program is counted once"


def test_programs_run_in_order_each_with_its_own_numbers() -> None:
    """Though all of them read one block, and leave what they find in one place."""
    hand = Hand()
    slow = torch.randn(64, 50_000)
    waiting, _ = record(lambda: cpu_rows.add(slow, slow))
    lines = torch.tensor([1, 0])
    program, output = record(lambda: cpu_rows.pick(hand.block, lines))
    for round_ in range(20):
        hand.start(waiting, NOTHING)
        tickets = [hand.start(program, output, 10 * round_ + number) for number in range(10)]
        for number in (3, 9, 0, 1, 2, *range(4, 9), 3):
            assert tickets[number].collect() == [10 * round_ + number] * 6


def test_more_programs_than_a_worker_knows_of_wait_for_each_other() -> None:
    hand = Hand()
    last = torch.tensor([1])
    program, output = record(lambda: cpu_rows.pick(hand.block, last))
    for number in range(10 * ROOM):
        ticket = hand.start(program, output, number)
    assert ticket.collect() == [number] * 3
    hand.worker.finish()


def test_what_does_not_fit_a_worker_is_refused() -> None:
    hand = Hand()
    last = torch.tensor([1])
    program, output = record(lambda: cpu_rows.pick(hand.block, last))
    with pytest.raises(ValueError, match="24 bytes for 48"):
        hand.worker.start(program, np.zeros(3, dtype=np.int64), hand.block, output)
    with pytest.raises(ValueError, match="float32 to collect"):
        hand.start(program, output.float())


def test_a_worker_tells_which_call_failed_and_goes_on() -> None:
    table, index = torch.randn(4, 8), torch.tensor([0, 1])
    program, output = record(lambda: cpu_rows.pick(table, index))
    hand = Hand()
    index[1] = 4
    failed = hand.start(program, NOTHING)
    hand.worker.finish()
    index[1] = 3
    hand.start(program, NOTHING).wait()
    for ask in (failed.wait, failed.collect):
        with pytest.raises(ValueError, match="kaminari_pick: the step's rows do not fit"):
            ask()
    assert torch.equal(output, table[[0, 3]])


def test_a_worker_s_thread_ends_with_it_also_while_it_is_busy() -> None:
    torch.set_num_threads(1)
    x = torch.randn(64, 100_000)
    program, _ = record(lambda: cpu_rows.add(x, x))
    threads = Path("/proc/self/task")
    before = {each.name for each in threads.iterdir()}
    for _ in range(20):
        hand = Hand()
        for _ in range(3):
            hand.start(program, NOTHING)
        del hand
    # a thread that was joined may be listed for a moment longer
    until = time.monotonic() + 10
    while ({each.name for each in threads.iterdir()} - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not {each.name for each in threads.iterdir()} - before


def test_a_worker_sleeps_and_wakes() -> None:
    index = torch.arange(3)
    program, output = record(lambda: cpu_rows.narrow(index))
    hand = Hand()
    for pause in (0.0, 0.02, 0.0, 0.02):
        time.sleep(pause)
        ticket = hand.start(program, NOTHING)
        time.sleep(pause)
        ticket.wait()
        assert output.tolist() == [0, 1, 2]
