"""A trace: what the reference did with some prompts, in memory and as a safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kaminari.verify.prompts import Prompt
from kaminari.verify.recording import StageRecord

FORMAT = "kaminari-trace-1"


class TraceError(Exception):
    """A file that holds no usable trace, or that of another checkpoint; the message is one line."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """A greedy answer: its tokens, and for each the top logit minus the second."""

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """One prompt in the reference.

    token_ids:  int64 [T], with every placeholder
    positions:  int64 [3, T]
    patches:    float32 [N, values] of all pictures, or None
    stages:     in order of computation
    """

    prompt: Prompt
    token_ids: Tensor
    positions: Tensor
    patches: Tensor | None
    stages: Mapping[str, StageRecord]
    greedy: Greedy


@dataclass(frozen=True, slots=True)
class Trace:
    """What the reference did.

    checkpoint:  digest of the checkpoint's config
    dtype:       what the reference ran in, such as float32
    made_with:   versions, for the reader
    """

    checkpoint: str
    dtype: str
    made_with: str
    prompts: tuple[PromptTrace, ...]


def checkpoint_digest(folder: Path) -> str:
    """Names a checkpoint's architecture: the same config gives the same digest, wherever it lies."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace. Raises OSError."""
    tensors: dict[str, Tensor] = {}
    prompts = []
    for number, each in enumerate(trace.prompts):
        at = f"{number}/"
        tensors[at + "token_ids"], tensors[at + "positions"] = each.token_ids, each.positions
        if each.patches is not None:
            tensors[at + "patches"] = each.patches
        for index, file in enumerate(each.prompt.pictures):
            tensors[f"{at}picture/{index}"] = torch.frombuffer(bytearray(file), dtype=torch.uint8)
        for name, record in each.stages.items():
            tensors[f"{at}input/{name}"], tensors[f"{at}output/{name}"] = record.entering, record.output
        prompts.append(
            {
                "name": each.prompt.name,
                "question": each.prompt.question,
                "pictures": len(each.prompt.pictures),
                "patches": each.patches is not None,
                "stages": list(each.stages),
                "greedy": each.greedy.token_ids,
                "gaps": each.greedy.gaps,
            }
        )
    about = {"checkpoint": trace.checkpoint, "dtype": trace.dtype, "made_with": trace.made_with}
    metadata = {"format": FORMAT, "about": json.dumps({**about, "prompts": prompts})}
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        raise OSError(" ".join(str(error).split())) from error


def load_trace(path: Path) -> Trace:
    """Read a trace. Raises `TraceError`."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise TraceError(f"{path} is no trace of this version of kaminari")
            about = json.loads(metadata["about"])
            prompts = tuple(_prompt(file, number, each) for number, each in enumerate(about["prompts"]))
            return Trace(about["checkpoint"], about["dtype"], about["made_with"], prompts)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"cannot read the trace {path}: {' '.join(str(error).split())}") from error


def _prompt(file: Any, number: int, about: Mapping[str, Any]) -> PromptTrace:
    def tensor(name: str) -> Tensor:
        found: Tensor = file.get_tensor(f"{number}/{name}")
        return found

    pictures = tuple(tensor(f"picture/{index}").numpy().tobytes() for index in range(int(about["pictures"])))
    return PromptTrace(
        prompt=Prompt(about["name"], about["question"], pictures),
        token_ids=tensor("token_ids"),
        positions=tensor("positions"),
        patches=tensor("patches") if about["patches"] else None,
        stages={
            name: StageRecord(tensor(f"input/{name}"), tensor(f"output/{name}")) for name in about["stages"]
        },
        greedy=Greedy(tuple(about["greedy"]), tuple(about["gaps"])),
    )
