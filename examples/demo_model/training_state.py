"""Where a training stands, in one safetensors file: weights, the optimizer's moments, the step.

A file is written aside and renamed, so that whatever ends a training leaves a whole one behind.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import AdamW

from examples.demo_model.network import Network

FILE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class StateError(Exception):
    """A file that no training can go on from, with the reason."""


def save_state(folder: Path, network: Network, optimizer: AdamW, step: int, first: int) -> None:
    """Keep what step `step` begins with. `first` is the step at which the optimizer began to gather."""
    tensors = {f"weights/{name}": tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        # a head that no batch has used yet has no moments
        if (state := optimizer.state.get(parameter)) is not None:
            tensors |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS}
            tensors[f"updates/{name}"] = state["step"].reshape(1)
    aside = folder / f"{FILE}.part"
    save_file(tensors, aside, {"step": str(step), "first": str(first)})
    aside.replace(folder / FILE)


def load_state(folder: Path, network: Network, optimizer: AdamW) -> tuple[int, int]:
    """Take all back and return the step to go on with and the first. Raises `StateError`."""
    tensors, notes = _read(folder / FILE)
    try:
        step, first = int(notes["step"]), int(notes["first"])
    except (KeyError, ValueError) as error:
        raise StateError(f"{folder / FILE} does not say its step") from error
    _take_weights(network, tensors, folder / FILE)
    for name, parameter in network.named_parameters():
        if f"updates/{name}" in tensors:
            kept = {moment: tensors[f"{moment}/{name}"] for moment in _MOMENTS}
            kept["step"] = tensors[f"updates/{name}"].reshape(())
            optimizer.state[parameter] = {key: part.to(parameter.device) for key, part in kept.items()}
    return step, first


def load_weights(file: Path, network: Network) -> None:
    """Take only weights: of a training's state, or of a checkpoint. Raises `StateError`."""
    tensors, _ = _read(file)
    _take_weights(network, tensors, file)


def exported_weights(folder: Path) -> dict[str, Tensor]:
    """The checkpoint's tensors of a training's state, float32. Raises `StateError`."""
    tensors, _ = _read(folder / FILE)
    return {name: tensor for name, tensor in _weights(tensors).items() if name.startswith("model.")}


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StateError(f"cannot read {file}: {error}") from error


def _weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = "weights/"
    named = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
    return named or tensors


def _take_weights(network: Network, tensors: dict[str, Tensor], file: Path) -> None:
    try:
        network.start_from({name: tensor.to(torch.float32) for name, tensor in _weights(tensors).items()})
    except ValueError as error:
        raise StateError(f"{file}: {error}") from error
