"""Where a model runs and in which precision: turns the "auto" of the settings into a device and dtypes."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from kaminari.config import DeviceChoice, DtypeChoice, ModelSettings
from kaminari.config.cores import usable_cores

SHARED_FROM = 64 * 2**20


class PlacementError(Exception):
    """A device that was asked for and is not there, or what it cannot do; the message is one line."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Precision of the decoder and of the vision tower."""

    decoder: torch.dtype
    vision: torch.dtype


def resolve_device(choice: DeviceChoice) -> torch.device:
    """The device that a choice stands for; "auto" is CUDA where there is one. Raises `PlacementError`."""
    if choice is DeviceChoice.CPU:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if choice is DeviceChoice.AUTO:
        return torch.device("cpu")
    built = torch.version.cuda is not None or torch.version.hip is not None
    reason = (
        "no CUDA device is visible" if built else f"this torch ({torch.__version__}) is built without CUDA"
    )
    raise PlacementError(f"the device cuda was asked for, and {reason}; use device cpu or auto")


def resolve_dtypes(model: ModelSettings, device: torch.device) -> Dtypes:
    """Dtypes of decoder and vision tower.

    An "auto" decoder is bfloat16 where the device multiplies it natively, else float32; an "auto" vision
    tower follows the decoder.
    """
    decoder = _dtype(model.dtype)
    if decoder is None:
        decoder = torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    return Dtypes(decoder, _dtype(model.vision_dtype) or decoder)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products, and does not emulate them in float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
    return any(cpu_bfloat16_features().values())


def cpu_bfloat16_features() -> dict[str, bool]:
    """The CPU's instruction sets that multiply bfloat16, by name, and whether it has them.

    torch has no public question for this; where a private one is gone, the answer is no.
    """
    return {
        "avx512_bf16": _ask(getattr(torch.cpu, "_is_avx512_bf16_supported", None)),
        "amx": _ask(getattr(torch.cpu, "_is_amx_tile_supported", None)),
        "arm_bf16": platform.machine().lower() in ("aarch64", "arm64") and _ask(_mkldnn_bf16()),
    }


def cpu_threads(choice: int | Literal["auto"], weight_bytes: int) -> int:
    """How many threads a model's steps share.

    "auto" is one per physical core that this process may use, and one in all below `SHARED_FROM` bytes of
    weights: so short a step gains nothing from a second thread, and where anything else wants the cores (the
    server's own loop, a client), each of its many parts waits until every thread had its turn.
    """
    if choice != "auto":
        return choice
    if weight_bytes < SHARED_FROM:
        return 1
    return usable_cores()


def pipeline_depth(choice: int | Literal["auto"], device: torch.device) -> int:
    """Steps in flight.

    "auto" is 2 on CUDA. On a CPU it is 2 where the steps' threads (those of the calling thread) leave a core
    to the host, which else would only take theirs.
    """
    if choice != "auto":
        return choice
    return 2 if device.type == "cuda" or torch.get_num_threads() < usable_cores() else 1


def prefill_chunk(choice: int | Literal["auto"], weight_bytes: int, device: torch.device) -> int:
    """Most prompt tokens in one step.

    "auto" is 512. On a CPU and below `SHARED_FROM` bytes of weights it is 128: there a step's time goes to
    its tokens rather than to reading weights, so that smaller chunks cost nothing, and whoever comes while
    a long prompt runs waits for less of it.
    """
    if choice != "auto":
        return choice
    return 128 if device.type == "cpu" and weight_bytes < SHARED_FROM else 512


def _mkldnn_bf16() -> Callable[[], object] | None:
    return getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)


def _ask(question: Callable[[], object] | None) -> bool:
    return question is not None and bool(question())


def _dtype(choice: DtypeChoice) -> torch.dtype | None:
    if choice is DtypeChoice.AUTO:
        return None
    return torch.float32 if choice is DtypeChoice.FLOAT32 else torch.bfloat16
