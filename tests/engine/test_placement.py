"""Where "auto" leads: devices and dtypes, and what is said of a device that is not there."""

from __future__ import annotations

import platform

import pytest
import torch

from kaminari.config import DeviceChoice, DtypeChoice, ModelSettings
from kaminari.engine import placement
from kaminari.engine.placement import (
    SHARED_FROM,
    Dtypes,
    PlacementError,
    cpu_bfloat16_features,
    cpu_threads,
    multiplies_bfloat16,
    pipeline_depth,
    prefill_chunk,
    resolve_device,
    resolve_dtypes,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("cuda")
def test_devices_where_there_is_cuda() -> None:
    assert resolve_device(DeviceChoice.AUTO) == CUDA
    assert resolve_device(DeviceChoice.CUDA) == CUDA
    assert resolve_device(DeviceChoice.CPU) == CPU


@pytest.mark.usefixtures("no_cuda")
def test_devices_where_there_is_none() -> None:
    assert resolve_device(DeviceChoice.AUTO) == CPU
    assert resolve_device(DeviceChoice.CPU) == CPU


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    ("version", "reason"), [(None, "is built without CUDA"), ("13.0", "no CUDA device is visible")]
)
def test_cuda_that_is_not_there(monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(PlacementError, match=reason) as caught:
        resolve_device(DeviceChoice.CUDA)
    assert "use device cpu or auto" in str(caught.value)


@pytest.mark.parametrize("native", [False, True])
def test_dtypes(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda device: native)
    auto = torch.bfloat16 if native else torch.float32
    f32, bf16 = torch.float32, torch.bfloat16

    def dtypes(dtype: DtypeChoice, vision: DtypeChoice = DtypeChoice.AUTO) -> Dtypes:
        return resolve_dtypes(ModelSettings(dtype=dtype, vision_dtype=vision), CPU)

    assert dtypes(DtypeChoice.AUTO) == Dtypes(auto, auto)
    assert dtypes(DtypeChoice.FLOAT32) == Dtypes(f32, f32)
    assert dtypes(DtypeChoice.BFLOAT16) == Dtypes(bf16, bf16)
    assert dtypes(DtypeChoice.AUTO, DtypeChoice.FLOAT32) == Dtypes(auto, f32)
    assert dtypes(DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16) == Dtypes(f32, bf16)


@pytest.mark.parametrize(("capability", "native"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_cuda_multiplies_bfloat16_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert multiplies_bfloat16(CUDA) is native


@pytest.mark.parametrize("native", [False, True])
def test_the_cpu_is_asked(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert cpu_bfloat16_features()["avx512_bf16"] is native
    assert multiplies_bfloat16(CPU) is native


def test_threads_are_the_cores_but_for_a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: 3)
    assert cpu_threads("auto", SHARED_FROM) == 3
    assert cpu_threads("auto", SHARED_FROM - 1) == 1
    assert cpu_threads(5, 1) == cpu_threads(5, SHARED_FROM) == 5


def test_a_cpu_with_a_core_to_spare_has_two_steps_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: 4)
    for threads, depth in ((1, 2), (3, 2), (4, 1), (6, 1)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert pipeline_depth("auto", CPU) == depth
        assert pipeline_depth("auto", torch.device("cuda")) == 2
        assert pipeline_depth(1, CPU) == 1
        assert pipeline_depth(2, CPU) == 2


def test_prompts_are_read_in_smaller_chunks_where_that_costs_nothing() -> None:
    assert prefill_chunk("auto", SHARED_FROM - 1, CPU) == 128
    assert prefill_chunk("auto", SHARED_FROM, CPU) == 512
    assert prefill_chunk("auto", 1, torch.device("cuda")) == 512
    assert prefill_chunk(64, 1, CPU) == prefill_chunk(64, SHARED_FROM, CPU) == 64


def test_a_question_that_torch_no_longer_answers_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert not any(cpu_bfloat16_features().values())


def test_arm_is_asked_only_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_mkldnn_bf16", lambda: lambda: True)
    for machine, native in (("aarch64", True), ("arm64", True), ("x86_64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert cpu_bfloat16_features()["arm_bf16"] is native
