"""Layers that run compiled in parts: which steps do, and what cannot be compiled is said by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._export.utils import _compiling_state_context

from kaminari.config import load_settings
from kaminari.config.folders import CODE_CACHE, FolderError, owned
from kaminari.engine.loading import plan_model
from kaminari.engine.placement import PlacementError
from kaminari.model import compiled_layers
from kaminari.model.compiled_layers import MOST_TOKENS, PartedLayer, compile_layers
from kaminari.model.family import CheckpointError
from kaminari.model.kernels import cpu_norm, cpu_rows


@pytest.fixture(autouse=True, scope="module")
def fresh_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here goes into a folder of its own, and is forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CODE_CACHE, str(tmp_path_factory.mktemp("compiled")))
        torch.compiler.reset()
        yield
        torch.compiler.reset()


class Doubling(PartedLayer):
    """A layer whose only part doubles."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(Doubling.double, x)

    def double(self, x: Tensor) -> Tensor:
        return 2 * x


class Telling(Doubling):
    """A layer whose part cannot be one graph: it looks at what it computes."""

    def double(self, x: Tensor) -> Tensor:
        return 2 * x if bool(x.sum() > 0) else x

    def forward(self, x: Tensor) -> Tensor:
        return self.run(Telling.double, x)


def test_only_small_steps_of_compiled_layers_run_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def fake(part: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(layer: Doubling, x: Tensor) -> Tensor:
            compiled.append(x.shape[0])
            return part(layer, x)

        return run

    monkeypatch.setattr(compiled_layers, "_compiled", fake)
    layer = Doubling()
    assert torch.equal(layer(torch.ones(1, 2)), torch.full((1, 2), 2.0))
    assert not compiled
    compile_layers(torch.nn.Sequential(layer))
    for rows in (1, MOST_TOKENS, MOST_TOKENS + 1):
        assert torch.equal(layer(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))
    assert compiled == [1, MOST_TOKENS]


def test_a_part_that_does_not_compile_is_refused_by_name() -> None:
    layer = Telling()
    compile_layers(layer)
    with pytest.raises(CheckpointError, match=r"do not compile here .*KAMINARI_MODEL__COMPILE=off"):
        layer(torch.ones(1, 2))


# torch's own inductor still uses torch.jit where it is imported
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_part_that_was_compiled_too_often_is_refused_by_name() -> None:
    """Every dtype and count of threads is a graph more, of as many as torch allows in a process."""
    layer = Doubling()
    compile_layers(layer)
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        assert torch.equal(layer(torch.ones(1, 2)), torch.full((1, 2), 2.0))
        with pytest.raises(CheckpointError, match=r"as torch allows.*KAMINARI_MODEL__COMPILE=off"):
            layer(torch.ones(1, 2, dtype=torch.float64))


def test_who_compiles_elsewhere_changes_no_kernel_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch says `is_compiling` to every thread while one of them compiles."""
    x = torch.ones(1, 4)
    before = cpu_rows.fits(x), cpu_norm.fits(x)
    with _compiling_state_context():
        assert torch.compiler.is_compiling()
        assert (cpu_rows.fits(x), cpu_norm.fits(x)) == before
    assert torch.compile(lambda x: x + cpu_rows.fits(x) + cpu_norm.fits(x), backend="eager")(x)[0, 0] == 1


def test_a_cache_folder_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CODE_CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "kaminari" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(FolderError, match="open to other users"):
        owned(folder)
    with pytest.raises(CheckpointError, match=f"model.compile: .*open to other users.*{CODE_CACHE}"):
        compile_layers(Doubling())
    folder.chmod(0o700)
    compile_layers(Doubling())
    assert os.environ[CODE_CACHE] == str(folder)


def test_a_pack_is_refused(tmp_path: Path) -> None:
    settings = load_settings({"model.compile": "on", "model.quantization": str(tmp_path)})
    with pytest.raises(PlacementError, match=r"model\.compile takes plain weights.*model\.quantization"):
        plan_model(settings)
