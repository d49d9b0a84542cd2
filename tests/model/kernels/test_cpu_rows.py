"""The plain operators in C++ are torch's, roundings included, and refuse what does not fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kaminari.model import operators
from kaminari.model.kernels import cpu_rows
from kaminari.model.kernels.native.build import allow_native, native_kernels
from kaminari.model.rotary import InterleavedRotary

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (5, 16384), (2, 100_001)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, y = torch.randn(*shape).to(dtype), torch.randn(*shape).to(dtype)
    assert torch.equal(cpu_rows.add(x, y), x + y)
    assert torch.equal(cpu_rows.add(x.t(), y.t()), (x + y).t())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate(dtype: torch.dtype) -> None:
    both = (torch.randn(40, 2 * 6, 72) * 8).to(dtype)
    x, gates = torch.randn(40, 6, 72).to(dtype), both[:, 1::2]
    found = cpu_rows.gate(x, gates)
    # an exponential within a unit in the last place and three roundings behind it, here and there
    assert torch.allclose(found, x * gates.sigmoid(), rtol=5 * torch.finfo(dtype).eps, atol=0)
    for row in range(40):
        assert torch.equal(cpu_rows.gate(x[row : row + 1], gates[row : row + 1])[0], found[row])


def test_gates_that_are_no_numbers_or_past_all_numbers() -> None:
    gates = torch.tensor([float("nan"), float("inf"), -float("inf"), 200.0, -200.0, 0.0]).view(1, 1, 6)
    found = cpu_rows.gate(torch.full((1, 1, 6), 2.0), gates)[0, 0]
    assert found[0].isnan()
    assert found[1:].tolist() == [2.0, 0.0, 2.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("width", [(), (1,), (37,), (4, 5)])
def test_pick(dtype: torch.dtype, width: tuple[int, ...]) -> None:
    table = (torch.randn(9, *width) * 50).to(dtype)
    for index in ([0], [8, 0, 8, 3], []):
        which = torch.tensor(index, dtype=torch.int64)
        assert torch.equal(cpu_rows.pick(table, which), table.index_select(0, which))
    columns = torch.tensor([[1, 7], [2, 7], [3, 7]])
    assert torch.equal(cpu_rows.pick(table, columns[:, 0]), table[1:4])


def test_narrow() -> None:
    x = torch.tensor([[0, 5], [-3, 6], [2**31 - 1, 7]])
    assert torch.equal(cpu_rows.narrow(x[:, 0]), x[:, 0].int())


@pytest.mark.parametrize("dtype", DTYPES)
def test_join(dtype: torch.dtype) -> None:
    parts = [torch.randn(5, width).to(dtype) for width in (3, 1, 64)]
    assert torch.equal(cpu_rows.join(parts), torch.cat(parts, dim=-1))
    assert torch.equal(
        cpu_rows.join([parts[2][:, ::2], parts[0]]), torch.cat((parts[2][:, ::2], parts[0]), -1)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [24, 30, 64])
@pytest.mark.parametrize("scaling", [1.0, 1.3])
def test_turns_that_are_looked_up_are_those_that_are_computed(
    dtype: torch.dtype, count: int, scaling: float
) -> None:
    rotary = InterleavedRotary(10000 ** -(torch.arange(count) / count), (count - 16, 8, 8), scaling)
    positions = torch.randint(0, 3000, (3, 50))
    positions[:, 0], positions[:, 1] = 0, 2999
    steps = [positions, positions[0].expand(3, -1), positions[:, :1], positions[:, 7:8], positions[:, :0]]
    computed = [rotary(each, dtype) for each in steps]
    rotary.tabulate(3000, dtype)
    for each, expected in zip(steps, computed, strict=True):
        found = cpu_rows.turns(each, rotary.axes, *rotary._tables[-1])
        assert found is not None
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert all(torch.equal(*pair) for pair in zip(rotary(each, dtype), expected, strict=True))
    for past in (3000, -1):
        positions[1, 20] = past
        assert cpu_rows.turns(positions, rotary.axes, *rotary._tables[-1]) is None
        assert torch.equal(rotary(positions, dtype)[0][:20], computed[0][0][:20])


REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index past the table": lambda x, i: cpu_rows.pick(x, i + 4),
    "index before the table": lambda x, i: cpu_rows.pick(x, i - 5),
    "index of int32": lambda x, i: cpu_rows.pick(x, i.int()),
    "index of two axes": lambda x, i: cpu_rows.pick(x, i[None]),
    "table with gaps": lambda x, i: cpu_rows.pick(x[:, ::2], i),
    "sum of two shapes": lambda x, i: cpu_rows.add(x, x[:1]),
    "sum of two dtypes": lambda x, i: cpu_rows.add(x, x.bfloat16()),
    "sum of doubles": lambda x, i: cpu_rows.add(x.double(), x.double()),
    "gates of another shape": lambda x, i: cpu_rows.gate(x[None], x[None, :2]),
    "gates with gaps inside": lambda x, i: cpu_rows.gate(x[None, :, :4], x[None, :, ::2]),
    "gates of two axes": lambda x, i: cpu_rows.gate(x, x),
    "narrow of floats": lambda x, i: cpu_rows.narrow(x[0]),
    "join of other rows": lambda x, i: cpu_rows.join([x, x[:2]]),
    "join of two dtypes": lambda x, i: cpu_rows.join([x, x.bfloat16()]),
    "positions of two axes": lambda x, i: turns(positions=torch.zeros(2, 5, dtype=torch.int64)),
    "positions of floats": lambda x, i: turns(positions=torch.zeros(3, 5)),
    "axes of another length": lambda x, i: turns(axes=torch.zeros(7, dtype=torch.int64)),
    "tables of doubles": lambda x, i: turns(cosines=torch.zeros(4, 8, dtype=torch.float64)),
    "tables of two dtypes": lambda x, i: turns(cosines=torch.zeros(4, 8, dtype=torch.bfloat16)),
    "tables of two lengths": lambda x, i: turns(cosines=torch.zeros(5, 8)),
    "tables with gaps": lambda x, i: turns(cosines=torch.zeros(4, 16)[:, ::2]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    with pytest.raises(
        ValueError, match=r"no kernel|lines|numbers of a head|do not fit|one behind the other"
    ):
        REFUSED[what](torch.randn(4, 8), torch.tensor([0, 3]))


def test_without_the_library_torch_does_it() -> None:
    x, index = torch.randn(4, 3, 8), torch.tensor([2, 0])
    allow_native(False)
    try:
        found = [
            operators.add(x, x),
            operators.gate(x, x),
            operators.pick(x, index),
            operators.narrow(index),
            operators.join([x[0], x[1]]),
        ]
        with pytest.raises(ValueError, match="no kernel"):
            cpu_rows.add(x, x)
    finally:
        allow_native(True)
    expected = [x + x, x * x.sigmoid(), x[index], index.int(), torch.cat((x[0], x[1]), -1)]
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def turns(
    positions: Tensor | None = None, axes: Tensor | None = None, cosines: Tensor | None = None
) -> object:
    return cpu_rows.turns(
        torch.zeros(3, 5, dtype=torch.int64) if positions is None else positions,
        torch.zeros(8, dtype=torch.int64) if axes is None else axes,
        torch.zeros(4, 8) if cosines is None else cosines,
        torch.zeros(4, 8),
    )
