"""The moments that gptq rounds by are those of what the linears take, however few are held at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kaminari.model.linear import Linear
from kaminari.model.packs.targets import matrices_by_parameter
from kaminari.model.stages import find_stages
from kaminari.verify.calibration import ROOM, Calibration
from kaminari.verify.prompts import built_in
from kaminari.verify.quality import with_answer
from kaminari.verify.replay import Replayer, open_frontend
from tests.model.steps import load


@pytest.mark.parametrize("room", [0, 50_000, ROOM])
@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5"])
def test_moments_are_those_of_the_inputs(variant: str, room: int, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(variant)
    model: Any = load(folder)
    replayer = Replayer(model, find_stages(folder), open_frontend(folder, 2))
    prompts = [replayer.prepare(prompt) for prompt in built_in()[:2]]
    answered = [with_answer(prompt, replayer.greedy(prompt, 3)[:-1]) for prompt in prompts]
    calibration = Calibration(model, replayer, prompts, tokens=3, room=room)
    linears = {
        name: matrix
        for name, matrix in matrices_by_parameter(model.network).items()
        if isinstance(matrix, Linear)
    }
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in linears}
    hooks = [
        linear.register_forward_pre_hook(lambda _, args, rows=seen[name]: rows.append(args[0].clone()))
        for name, linear in linears.items()
    ]
    for read in answered:
        replayer.read(read)
    for hook in hooks:
        hook.remove()
    for name in linears:
        x = torch.cat(seen[name])
        assert x.shape[0] == sum(len(prompt.token_ids) + 2 for prompt in prompts)
        assert torch.allclose(calibration.of(name), x.T @ x / x.shape[0], rtol=1e-4, atol=1e-4), name
