"""A trace of each tiny checkpoint, made once, and models to hold to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from kaminari.model.stages import find_stages
from kaminari.verify.prompts import built_in
from kaminari.verify.reference import record_reference
from kaminari.verify.replay import Mode, Replayer, open_frontend
from kaminari.verify.trace import Trace
from kaminari.verify.verifying import Report, hold_to
from tests.model.steps import load

BOTH = tuple(Mode)


@dataclass(frozen=True)
class Traced:
    """A checkpoint folder and the reference's float32 trace of the built-in prompts."""

    folder: Path
    trace: Trace

    def held(self, model: object = None, modes: tuple[Mode, ...] = (Mode.ISOLATED,)) -> Report:
        """Hold a model (by default one that is freshly loaded) to the trace."""
        model = load(self.folder) if model is None else model
        replayer = Replayer(model, find_stages(self.folder), open_frontend(self.folder, 4))
        return hold_to(self.trace, replayer, torch.float32, modes=modes)


def traced(folder: Path) -> Traced:
    return Traced(folder, record_reference(folder, built_in(), torch.float32, tokens=4))
