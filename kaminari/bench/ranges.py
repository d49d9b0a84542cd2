"""Names for the parts of a decoder: who is told where each of them begins and ends while it runs.

A range is the innermost part that runs: what a layer does outside of its named parts belongs to what is
around it. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from kaminari.model.family import VisionLanguageModel
from kaminari.model.layers import Norm, SwiGLU
from kaminari.model.linear import Linear

AROUND = "embedding, rotation, sums"
MIXING = {"attend": "attention", "recur": "recurrence"}
"""What a layer's mixer does between its projections."""


class Marks(Protocol):
    """Who is told. Ranges end in the opposite order of their beginnings."""

    def enter(self, name: str) -> None: ...

    def leave(self) -> None: ...


@contextmanager
def named_ranges(model: VisionLanguageModel, marks: Marks) -> Iterator[None]:
    """Tell `marks` of the decoder's parts inside the `with`; compiled code runs as one part, unmarked."""
    network: Any = model
    text = network.network.text
    with ExitStack() as undo:
        for part in text.modules():
            if (name := component_of(part)) is not None:
                _wrap(part, "forward", name, marks, undo)
            if isinstance(part, Norm):
                for verb in ("behind", "turned"):
                    _wrap(part, verb, "norms", marks, undo)
            for verb, name in MIXING.items():
                if hasattr(part, verb):
                    _wrap(part, verb, name, marks, undo)
        for verb, name in (("forward", AROUND), ("head", "head")):
            _wrap(network, verb, name, marks, undo)
        yield


def component_of(part: nn.Module) -> str | None:
    """What a module of a decoder is called, or None where it belongs to what it stands in."""
    if isinstance(part, Linear):
        return "projections"
    if isinstance(part, Norm):
        return "norms"
    return "activation" if isinstance(part, SwiGLU) else None


def _wrap(owner: Any, verb: str, name: str, marks: Marks, undo: ExitStack) -> None:
    whole = getattr(owner, verb)

    def ranged(*args: object) -> object:
        if torch.compiler.is_compiling():
            return whole(*args)
        marks.enter(name)
        try:
            return whole(*args)
        finally:
            marks.leave()

    setattr(owner, verb, ranged)
    undo.callback(delattr, owner, verb)
