"""The peer `transformers`: the reference of the same checkpoint, driven through its own `generate`.

A step is timed where `generate` asks its logits processors, so its set-up is never counted. The cache is
filled once per prompt and repeated for every row, as kaminari does with the choices of one request.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StaticCache

from kaminari.bench.timing import timed, wait
from kaminari.model.stages import ReferenceModel, find_stages

NO_TOKEN = 2**31 - 1  # an id past every vocabulary: no token ends an answer early


class _Stamps(LogitsProcessor):  # type: ignore[misc]
    """Notes when each step's logits are there, and changes nothing."""

    def __init__(self, device: torch.device) -> None:
        self.times: list[float] = []
        self._device = device

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wait(self._device)
        self.times.append(time.perf_counter())
        return scores


class Reference:
    """The loaded reference, on the device and in the dtype of the model that it is compared with."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Raises `CheckpointError`."""
        self._reference: ReferenceModel = find_stages(folder).load_reference(folder, dtype)
        self._reference.model.to(device)
        self.device = device
        self._dtype = dtype
        parameters = inspect.signature(self._reference.model.forward).parameters
        # transformers renamed the argument that holds the cache
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @property
    def static_works(self) -> bool:
        """Whether its static cache can be filled: not where layers hold recurrent states."""
        config = self._reference.model.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        return kinds == {"full_attention"}

    def prefill(self, token_ids: Sequence[int]) -> float:
        """Seconds until the first token of a prompt."""
        stamps = _Stamps(self.device)
        wait(self.device)
        began = time.perf_counter()
        self._generate(torch.tensor([token_ids], device=self.device), None, 1, stamps)
        return stamps.times[0] - began

    def filled_cache(self, token_ids: Sequence[int]) -> Any:
        """A dynamic cache of one row that holds all but the last token of a prompt."""
        model = self._reference.model
        ids = torch.tensor([token_ids[:-1]], device=self.device)
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return output[self._cache_name]

    def copy_of(self, filled: Any) -> Any:
        """A cache of its own with the same contents."""
        return copy.deepcopy(filled)

    def static_cache(self, filled: Any, capacity: int) -> Any:
        """A static cache of `capacity` tokens with what a dynamic one holds."""
        static = StaticCache(config=self._reference.model.config, max_cache_len=capacity)
        for number, layer in enumerate(filled.layers):
            static.update(layer.keys, layer.values, number)
        return static

    def steps(self, ids: Tensor, cache: Any, count: int) -> tuple[Tensor, list[float]]:
        """Go on from ids [rows, T] whose first T - 1 are in the cache, by `count` + 1 tokens.

        Returns all ids, and the seconds of the last `count` steps.
        """
        stamps = _Stamps(self.device)
        ids = self._generate(ids, cache, count + 1, stamps)
        return ids, [after - before for before, after in itertools.pairwise(stamps.times)]

    def picture_inputs(self, image: Image.Image, marker: str) -> dict[str, Tensor]:
        """What its vision half takes for a picture, by its own processor."""
        inputs = self._reference.inputs(marker, [image])
        names = inspect.signature(self._reference.model.model.get_image_features).parameters
        taken = {name: value.to(self.device) for name, value in inputs.items() if name in names}
        return {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in taken.items()
        }

    def patches(self, inputs: dict[str, Tensor]) -> int:
        """How many patches that is."""
        patches = self._reference.patches(inputs)
        return 0 if patches is None else patches.shape[0]

    def encode(self, inputs: dict[str, Tensor]) -> float:
        """Seconds of its vision half."""
        features = self._reference.model.model.get_image_features
        return timed(lambda: features(**inputs), self.device)

    def _generate(self, ids: Tensor, cache: Any, tokens: int, stamps: _Stamps) -> Tensor:
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=[NO_TOKEN],
            pad_token_id=0,
            disable_compile=True,
        )
        # offsets that an earlier call left belong to another number of rows
        self._reference.model.model.rope_deltas = None
        more = {} if cache is None else {self._cache_name: cache}
        output: Tensor = self._reference.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            logits_processor=LogitsProcessorList([stamps]),
            **more,
        )
        return output
