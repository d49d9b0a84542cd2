"""Training step by step: batches, losses, one update. Nothing here reads arguments or writes files.

Weights and moments are float32; products run in bfloat16. The same on a CPU and on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from examples.demo_model.batches import make_batch
from examples.demo_model.lessons import Ration
from examples.demo_model.losses import losses
from examples.demo_model.network import Network
from examples.demo_model.schedule import Schedule
from examples.demo_model.tokens import Scribe

_LARGEST_GRADIENT = 1.0
_WEIGHT_DECAY = 0.05

TILES = (Ration("tile", 32),)
MIXTURE = (
    Ration("line", 12),
    Ration("receipt", 10),
    Ration("tile", 32, every=6),
    Ration("shape", 8, every=6),
    Ration("two pictures", 8, every=6, weight=0.7),
    Ration("plain text", 8, every=6, weight=0.5),
)
HARDER = (
    *MIXTURE,
    Ration("harder line", 12, every=3),
    Ration("harder receipt", 6, every=3),
    Ration("long receipt", 4, every=6),
    Ration("two receipts", 4, every=6),
    Ration("table", 8, every=6),
    Ration("chart", 8, every=6),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """
    seed:      of everything that is drawn
    tiles:     first steps that show tiles alone, so that the tower learns letters before any question
    schedule:  of the learning rate
    harder:    photographs, small print, longer receipts, two of them, tables and charts too
    """

    seed: int
    tiles: int
    schedule: Schedule
    harder: bool = False

    def rations(self, step: int) -> list[Ration]:
        """What a step shows. Kinds that come every few steps take turns."""
        mixture = TILES if step < self.tiles else HARDER if self.harder else MIXTURE
        return [ration for number, ration in enumerate(mixture) if (step + number) % ration.every == 0]


def make_optimizer(network: nn.Module) -> AdamW:
    """Products decay; embeddings, norms and biases do not."""
    decaying, others = [], []
    for name, parameter in network.named_parameters():
        (decaying if parameter.dim() >= 2 and "embed" not in name else others).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": _WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)


class Trainer:
    """Takes steps by their number, so what a step shows does not depend on those before it."""

    def __init__(self, network: Network, optimizer: AdamW, scribe: Scribe, plan: Plan) -> None:
        self._network = network
        self._optimizer = optimizer
        self._scribe = scribe
        self._plan = plan
        self._device = next(network.parameters()).device

    def step(self, number: int) -> dict[str, dict[str, float]]:
        """Take one step and return the figures of each kind of lesson that it showed."""
        self._optimizer.zero_grad(set_to_none=True)
        figures = {}
        for ration in self._plan.rations(number):
            seed = f"training {self._plan.seed} {number} {ration.kind}"
            batch = make_batch(ration, self._scribe, seed, self._device)
            with torch.autocast(self._device.type, torch.bfloat16):
                found = losses(self._network, batch)
            (ration.weight * found.total).backward()
            figures[ration.kind] = _read(found.figures)
        nn.utils.clip_grad_norm_(self._network.parameters(), _LARGEST_GRADIENT)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.schedule.rate(number)
        self._optimizer.step()
        return figures


def _read(figures: dict[str, Tensor]) -> dict[str, float]:
    values: Sequence[float] = torch.stack(list(figures.values())).tolist()
    return dict(zip(figures, values, strict=True))
