"""Records what goes through modules while a model runs, and can feed them other inputs on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kaminari.model.stages import Stage


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What a stage took and gave: rows [n, width] of its first input and of its output, on the CPU.

    The input of a stage that is not fed is left out: it is empty.
    """

    entering: Tensor
    output: Tensor

    def last(self, rows: int) -> StageRecord:
        """The record of the last rows alone, which keeps nothing else in memory."""
        return StageRecord(self.entering[-rows:].clone(), self.output[-rows:].clone())


@dataclass(slots=True)
class _Watched:
    """One stage while it is watched: the rows so far, and what to feed it in their place.

    fed:  rows that stand in for the inputs, or None
    row:  the next of them
    """

    stage: Stage
    fed: Tensor | None
    row: int = 0
    entering: list[Tensor] = field(default_factory=list)
    output: list[Tensor] = field(default_factory=list)

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the first input; give the module the fed rows instead where there are as many."""
        if not self.stage.fed:
            return None
        name = next(iter(kwargs), None)
        natural: Tensor = args[0] if args else kwargs[str(name)]
        rows = as_rows(natural)
        self.entering.append(rows)
        if self.fed is None:
            return None
        start, self.row = self.row, self.row + rows.shape[0]
        fed = self.fed[start : self.row]
        if fed.shape != rows.shape:
            return None
        other = fed.reshape(natural.shape).to(natural.device, natural.dtype)
        return ((other, *args[1:]), kwargs) if args else ((), {**kwargs, str(name): other})

    def after(self, _: nn.Module, __: Any, output: Any) -> None:
        self.output.append(as_rows(output))

    def record(self) -> StageRecord:
        entering = torch.cat(self.entering) if self.entering else torch.empty(0)
        return StageRecord(entering, torch.cat(self.output))


@contextmanager
def recorded(
    stages: Sequence[Stage], feed: Mapping[str, StageRecord] | None = None
) -> Iterator[dict[str, StageRecord]]:
    """Watch the stages inside the `with`; the dictionary holds those that ran once it is left.

    feed:  records by stage name; a stage that may be fed runs on the record's input instead of its own,
           and the record notes its own nevertheless
    """
    feed = feed or {}
    watched = [_Watched(stage, feed[stage.name].entering if stage.name in feed else None) for stage in stages]
    records: dict[str, StageRecord] = {}
    with ExitStack() as hooks:
        for each in watched:
            module = each.stage.module
            before = module.register_forward_pre_hook(each.before, with_kwargs=True)
            hooks.callback(before.remove)
            hooks.callback(module.register_forward_hook(each.after).remove)
        yield records
    records.update({each.stage.name: each.record() for each in watched if each.output})


def as_rows(value: Any) -> Tensor:
    """A module's input or output as rows [n, width] on the CPU; a list of tensors one behind the other."""
    if isinstance(value, list | tuple):
        return torch.cat([as_rows(part) for part in value])
    tensor: Tensor = value.detach()
    return tensor.reshape(-1, tensor.shape[-1]).to("cpu", copy=True)
