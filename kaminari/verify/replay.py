"""Runs kaminari's model over the prompts of a trace and records the same stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kaminari.engine.conversation import Detail
from kaminari.engine.frontend import Frontend, PictureRules
from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import PictureBudget, VisionLanguageModel, find_family
from kaminari.model.picture import Picture
from kaminari.model.stages import LOGITS, FamilyStages
from kaminari.verify.prompts import Prompt
from kaminari.verify.recording import StageRecord, as_rows, recorded
from kaminari.verify.reference import MOST_PIXELS
from kaminari.verify.trace import PromptTrace

# More than any picture takes: the reference's own size is what is verified.
NO_BUDGET = PictureBudget(max_tokens=1 << 30)


class Mode(StrEnum):
    """through: errors add up, as in service. isolated: each stage takes the reference's own input."""

    THROUGH = "through"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class Replay:
    """One prompt in kaminari, as in `PromptTrace`; `stages` may lack those that the model does not have."""

    token_ids: Tensor
    positions: Tensor
    patches: Tensor | None
    stages: dict[str, StageRecord]


def open_frontend(folder: Path, most_pictures: int) -> Frontend:
    """The prompt side, with no bounds but the model's own. Raises `CheckpointError`."""
    prompt_format = find_family(folder).prompt_format(folder)
    rules = PictureRules(dict.fromkeys(Detail, NO_BUDGET), MOST_PIXELS, max(1, most_pictures))
    return Frontend(folder, prompt_format, rules, prompt_format.max_context)


class Replayer:
    """One loaded model and its prompt side, held to traces."""

    def __init__(self, model: VisionLanguageModel, stages: FamilyStages, frontend: Frontend) -> None:
        self._model = model
        self._stages = stages
        self._frontend = frontend

    def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """Raises `RequestError`."""
        return self._frontend.prepare(prompt.conversation())

    @torch.inference_mode()
    def run(self, prepared: PreparedPrompt, trace: PromptTrace, mode: Mode) -> Replay:
        """Run a whole prompt as one step. The prompt must have the trace's tokens.

        Isolated, the patches and the positions are the reference's too where they have the same shape.
        """
        token_ids, positions, patches = _sides(prepared)
        feed = trace.stages if mode is Mode.ISOLATED else None
        if feed is not None:
            prepared = _with_inputs_of(prepared, trace)
        with recorded(self._stages.ours(self._model), feed) as stages:
            features = self._encode(prepared)
            cache = self._model.new_cache(1, len(prepared.token_ids))
            hidden = self._prefill(prepared, features, cache)
        records = dict(stages)
        if LOGITS in trace.stages:
            theirs = trace.stages[LOGITS].entering
            natural = hidden[-theirs.shape[0] :]
            entering = theirs.to(natural.device, natural.dtype) if feed is not None else natural
            records[LOGITS] = StageRecord(as_rows(natural), as_rows(self._model.head(entering)))
        return Replay(token_ids, positions, patches, records)

    @torch.inference_mode()
    def observe(self, prepared: PreparedPrompt, rows: int) -> dict[str, StageRecord]:
        """Run a whole prompt as one step: every stage, and the logits of its last `rows` tokens."""
        with recorded(self._stages.ours(self._model)) as stages:
            cache = self._model.new_cache(1, len(prepared.token_ids))
            hidden = self._prefill(prepared, self._encode(prepared), cache)[-rows:]
        return stages | {LOGITS: StageRecord(as_rows(hidden), as_rows(self._model.head(hidden)))}

    @torch.inference_mode()
    def read(self, prepared: PreparedPrompt) -> None:
        """Run a whole prompt as one step, for those who watch the modules."""
        self._prefill(prepared, self._encode(prepared), self._model.new_cache(1, len(prepared.token_ids)))

    @torch.inference_mode()
    def greedy(self, prepared: PreparedPrompt, tokens: int) -> tuple[int, ...]:
        """The greedy answer of `tokens` tokens, whatever they are."""
        length = len(prepared.token_ids)
        cache = self._model.new_cache(1, length + tokens)
        hidden = self._prefill(prepared, self._encode(prepared), cache)[-1:]
        answer: list[int] = []
        while True:
            answer.append(int(self._model.head(hidden).argmax(-1)))
            if len(answer) == tokens:
                return tuple(answer)
            place = length + len(answer) - 1
            positions = torch.full((3, 1), place + prepared.position_offset)
            hidden = self._model.forward(self._step(answer[-1:], positions, place + 1, None), cache)

    def _encode(self, prepared: PreparedPrompt) -> FeatureRows | None:
        if not prepared.pictures:
            return None
        rows = [self._model.encode_picture(picture) for picture in prepared.pictures]
        index = [place for span in prepared.spans for place in range(span.start, span.stop)]
        return FeatureRows(
            torch.tensor(index, device=self._model.device),
            torch.cat([each.embeddings for each in rows]),
            torch.cat([each.deepstack for each in rows], dim=1),
        )

    def _prefill(self, prepared: PreparedPrompt, features: FeatureRows | None, cache: SlotCache) -> Tensor:
        cache.claim(0)
        positions = torch.from_numpy(np.ascontiguousarray(prepared.positions))
        batch = self._step(prepared.token_ids, positions, len(prepared.token_ids), features)
        return self._model.forward(batch, cache)

    def _step(
        self, token_ids: Sequence[int], positions: Tensor, length: int, features: FeatureRows | None
    ) -> StepBatch:
        device, count = self._model.device, len(token_ids)
        return StepBatch(
            tokens=torch.tensor(token_ids, device=device),
            positions=positions.to(device),
            slots=torch.tensor([0], device=device),
            q_lens=torch.tensor([count], dtype=torch.int32, device=device),
            kv_lens=torch.tensor([length], dtype=torch.int32, device=device),
            logit_rows=torch.tensor([count - 1], device=device),
            host=RowLengths((0,), (count,), (length,)),
            features=features,
        )


def _sides(prepared: PreparedPrompt) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens [T], positions [3, T] and patches [N, values] of a prepared prompt."""
    pixels = [torch.tensor(picture.pixels) for picture in prepared.pictures]
    patches = torch.cat(pixels) if pixels else None
    return torch.tensor(prepared.token_ids), torch.tensor(prepared.positions), patches


def _with_inputs_of(prepared: PreparedPrompt, trace: PromptTrace) -> PreparedPrompt:
    pictures = prepared.pictures
    counts = [picture.pixels.shape[0] for picture in pictures]
    if trace.patches is not None and trace.patches.shape[0] == sum(counts):
        pictures = tuple(
            _with_pixels(picture, part)
            for picture, part in zip(pictures, torch.split(trace.patches, counts), strict=True)
        )
    return replace(prepared, positions=trace.positions.numpy(), pictures=pictures)


def _with_pixels(picture: Picture, pixels: Tensor) -> Picture:
    return replace(picture, pixels=pixels.numpy()) if pixels.shape == picture.pixels.shape else picture
