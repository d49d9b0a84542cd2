"""Where a step's time goes: every part is measured in the step that runs, and the parts add up to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kaminari.bench import profiling
from kaminari.bench.options import Options
from kaminari.bench.ranges import AROUND, named_ranges
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.stamps import Stamps
from kaminari.config import KernelChoice
from kaminari.model.kernels.native.build import allow_native, native_kernels
from kaminari.model.kernels.native.program import Recording
from tests.bench.harness import bench_of

needs_native = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


class Clock:
    """A library whose stamps are one microsecond apart."""

    def __init__(self) -> None:
        self.now = 0

    def kaminari_stamp(self, address: int) -> None:
        self.now += 1000
        ctypes.c_int64.from_address(address).value = self.now


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
@pytest.mark.parametrize("kernels", [pytest.param(KernelChoice.AUTO, marks=needs_native), KernelChoice.ATEN])
def test_a_profile_is_of_the_steps_that_run(
    kernels: KernelChoice,
    checkpoint: Callable[[str], Path],
    variant: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of captured steps with our kernels, and of uncaptured ones with torch's."""
    request.addfinalizer(lambda: allow_native(True))
    bench = bench_of(checkpoint(variant), Options(), kernels=kernels)
    wholes: list[float] = []
    unwatched = Session.steps

    def watched(session: Session, count: int) -> list[float]:
        wholes.extend(seconds := unwatched(session, count))
        return seconds

    monkeypatch.setattr(Session, "steps", watched)
    profiling.profile_decode(bench, 2, 100)
    shares = bench.recorder.shares
    names = [share.component for share in shares]
    assert {"projections", "attention", "norms", "sampling", "head", "activation"} <= set(names)
    assert ("recurrence" in names) == (variant != "tied-grouped")
    assert names[-1] == "host"
    assert all(share.seconds > 0 for share in shares)
    assert min(wholes) <= sum(share.seconds for share in shares) <= max(wholes)
    # nothing stays on the model
    model = bench.subject.loaded.model
    assert "forward" not in vars(model)
    assert not any("forward" in vars(part) for part in model.network.text.modules())


@needs_native
def test_a_captured_step_is_stamped_at_every_replay(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, Options())
    loaded = bench.subject.loaded
    stamps = Stamps(native_kernels().library)
    with named_ranges(loaded.model, stamps):
        session = Session(loaded, 2, 100, loaded.info.prefill_chunk)
        session.prefill(random_prompt(loaded, 40), 2)
    borders = len(stamps._borders)
    for rows in (2, 1):
        session.narrow(rows)
        for _ in range(2):
            stamps.take()
            assert stamps.take() == {}
            (whole,) = session.steps(1)
            parts = stamps.take()
            assert {"projections", "attention", "norms", "head"} <= set(parts)
            assert 0 < sum(parts.values()) < whole
    # the step is one call: Python meets no border in it
    assert len(stamps._borders) == borders


@needs_native
def test_a_stamp_is_recorded_in_its_place() -> None:
    library = native_kernels().library
    assert library is not None
    places = (ctypes.c_int64 * 2)()
    first, second = (ctypes.addressof(places) + 8 * place for place in range(2))
    with Recording() as recording:
        library.kaminari_stamp(first)
        library.kaminari_stamp(second)
    assert list(places) == [0, 0]
    program = recording.program(library)
    program.run()
    early = list(places)
    assert 0 < early[0] <= early[1]
    program.run()
    assert early[1] <= places[0] <= places[1]


def test_time_belongs_to_the_innermost_range() -> None:
    library: Any = Clock()
    stamps = Stamps(library)
    stamps.enter(AROUND)
    stamps.enter("projections")
    stamps.enter("norms")
    stamps.leave()
    stamps.leave()
    stamps.leave()
    stamps.enter("head")
    stamps.leave()
    parts = stamps.take()
    assert parts == pytest.approx({AROUND: 3e-6, "projections": 2e-6, "norms": 1e-6, "head": 1e-6})
    assert stamps.take() == {}


def test_a_range_that_fails_is_over(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = bench_of(tiny_checkpoint, Options()).subject.loaded.model
    stamps = Stamps(None)
    layer = model.network.text.layers[0]

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(type(layer.mlp.down), "forward", broken)
    with named_ranges(model, stamps), pytest.raises(RuntimeError, match="no"):
        layer.mlp.down(torch.zeros(1, 1))
    assert stamps._open == []


def test_a_profile_of_typical_steps_adds_up() -> None:
    steps = [(whole, {"norms": whole / 4, "attention": 1.0}) for whole in (8.0, 4.0, 6.0, 100.0)]
    parts, whole = profiling.typical(steps)
    assert whole == 7.0
    assert parts == {"norms": 1.75, "attention": 1.0}
    assert profiling.typical([(2.0, {"norms": 1.0})]) == ({"norms": 1.0}, 2.0)


def test_the_host_has_what_no_component_took() -> None:
    shares = profiling.shares({"batch": 1}, {"norms": 1.0, "attention": 2.0}, 4.0)
    assert [(share.component, share.seconds) for share in shares] == [
        ("attention", 2.0),
        ("norms", 1.0),
        ("host", 1.0),
    ]
    # parts that do not fit into their step are seen, not hidden
    assert profiling.shares({}, {"norms": 5.0}, 4.0)[-1].seconds == -1.0


def test_what_is_compiled_is_not_marked(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = Stamps(None)
    bench = bench_of(tiny_checkpoint, Options())
    with named_ranges(bench.subject.loaded.model, stamps):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        session = Session(bench.subject.loaded, 1, 64, 64, captured=False)
        session.prefill(random_prompt(bench.subject.loaded, 8), 1)
    assert stamps.take() == {}


def test_on_a_card_a_component_has_the_kernels_that_it_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler lists operators and ranges with their kernels and spans, and kernels once more alone."""

    def event(name: str, parent: Any = None, kernels: dict[str, float] | None = None) -> SimpleNamespace:
        listed = [SimpleNamespace(name=name, duration=each) for name, each in (kernels or {}).items()]
        return SimpleNamespace(name=name, cpu_parent=parent, kernels=listed)

    around = event(profiling.MARK + AROUND, None, {profiling.MARK + AROUND: 99e6})
    linear = event(profiling.MARK + "projections", around, {profiling.MARK + "projections": 40e6})
    mm = event("aten::mm", linear, {"gemm": 3e6, "splitk": 1e6})
    attention = event(profiling.MARK + "attention", around, {"_segment_kernel": 2e6})
    argmax = event("aten::argmax", None, {"reduce": 5e6})
    alone = [event("gemm"), event("splitk"), event("_segment_kernel"), event("reduce")]
    events = [around, linear, mm, attention, argmax, *alone]
    profiled = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(profiling, "profile", lambda activities: nullcontext(profiled))
    found = profiling.attribute(lambda: None, torch.device("cuda"))
    assert found == {"projections": 4.0, "attention": 2.0, "sampling": 5.0}


def test_torch_sees_the_ranges_by_their_names() -> None:
    marks = profiling.TorchMarks()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        marks.enter("norms")
        torch.ones(2).sum()
        marks.leave()
    summed = next(event for event in seen.events() if event.name == "aten::sum")
    assert profiling._range_of(summed) == "norms"
