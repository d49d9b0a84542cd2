"""What the decoder's linears take while the model reads prompts and its own answers: the moments of gptq.

A moment is as large as its linear is wide, squared, so few are held at a time: prompts are read again for
the next ones. All are those of the model's own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.family import VisionLanguageModel
from kaminari.model.linear import Linear, Matrix
from kaminari.model.packs.targets import matrices_by_parameter
from kaminari.verify.quality import with_answer
from kaminari.verify.replay import Replayer

ROOM = 1 << 30
"""Bytes of moments that are held at once, or those of one linear."""


class Calibration:
    """The moments of a loaded model's linears, to be asked for in about the order of its layers.

    tokens:  of its own greedy answer, which the model reads behind each prompt
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        replayer: Replayer,
        prompts: Sequence[PreparedPrompt],
        tokens: int,
        room: int = ROOM,
    ) -> None:
        self._matrices = _linears(model)
        self._replayer = replayer
        self._prompts = [with_answer(each, replayer.greedy(each, tokens)[:-1]) for each in prompts]
        self._room = room
        self._held: dict[str, Tensor] = {}

    def of(self, parameter: str) -> Tensor:
        """float32 [width, width]: the mean of x x^T over the inputs x of a linear, by its weight's name."""
        if parameter not in self._held:
            self._held.clear()
            self._held = self._gather(self._next(parameter))
        return self._held[parameter]

    def _next(self, first: str) -> list[str]:
        """The linear and as many behind it as there is room for."""
        names = list(self._matrices)
        chosen, left = [first], self._room - self._bytes(first)
        for name in names[names.index(first) + 1 :]:
            left -= self._bytes(name)
            if left < 0:
                break
            chosen.append(name)
        return chosen

    def _bytes(self, name: str) -> int:
        return self._matrices[name].in_features ** 2 * torch.float32.itemsize

    def _gather(self, names: Sequence[str]) -> dict[str, Tensor]:
        sums = {name: torch.zeros(2 * (self._matrices[name].in_features,)) for name in names}
        rows = dict.fromkeys(names, 0)

        def add(name: str, x: Tensor) -> None:
            flat = x.detach().reshape(-1, x.shape[-1]).float().cpu()
            sums[name].addmm_(flat.T, flat)
            rows[name] += flat.shape[0]

        with self._watched(names, add):
            for prompt in self._prompts:
                self._replayer.read(prompt)
        return {name: each / rows[name] for name, each in sums.items()}

    @contextmanager
    def _watched(self, names: Sequence[str], add: Callable[[str, Tensor], None]) -> Iterator[None]:
        with ExitStack() as hooks:
            for name in names:

                def before(_: Any, args: tuple[Tensor, ...], name: str = name) -> None:
                    add(name, args[0])

                hooks.callback(self._matrices[name].register_forward_pre_hook(before).remove)
            yield


def _linears(model: Any) -> dict[str, Matrix]:
    matrices = matrices_by_parameter(model.network)
    return {name: matrix for name, matrix in matrices.items() if isinstance(matrix, Linear)}
