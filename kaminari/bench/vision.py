"""The vision suite: seconds of the vision tower for one picture, by the tokens that it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import HF
from kaminari.bench.hf import Reference
from kaminari.bench.llama_cpp import PeerError
from kaminari.bench.recorder import join_case
from kaminari.bench.result import OURS
from kaminari.bench.subject import CasesError
from kaminari.bench.timing import timed, turns
from kaminari.bench.work import count_operations, operations_floor
from kaminari.model.family import PictureBudget, PictureError, PromptFormat
from kaminari.model.picture import Picture

# more than any picture takes: the reference's own size is what is measured
NO_BUDGET = PictureBudget(max_tokens=1 << 30)
PIXELS_STEP = 8
LONGEST_SIDE = 4096
ASPECT = 2
# of the tokens that were wished for
NEAR = 0.9

Entrants = list[tuple[str, Callable[[], float]]]


def run(bench: Bench) -> None:
    options, recorder, subject = bench.options, bench.recorder, bench.subject
    reference = bench.reference
    found = pictures(bench, subject.plan.prompt_format)
    recorder.expect(options.rounds * (1 if reference is None else 2) * len(found))
    for image, picture in found:
        case = {"tokens": picture.tokens}
        bench.measure_limits()
        recorder.starting(join_case(case))
        encode = partial(subject.loaded.model.encode_picture, picture)
        entrants: Entrants = [(OURS, partial(timed, encode, subject.device))]
        if reference is not None:
            entrants.append((HF, _theirs(reference, image, picture, subject.plan.prompt_format.marker)))
        floor = operations_floor(count_operations(encode))
        for _, work in entrants:
            work()
        for name, work in turns(entrants, options.rounds):
            amounts = {"pictures": 1, "tokens": picture.tokens}
            recorder.row(name, case, floor=floor, amounts=amounts).samples.append(work())
            recorder.done(join_case(case))


def pictures(bench: Bench, prompt_format: PromptFormat) -> list[tuple[Image.Image, Picture]]:
    """A picture for every wish, no two of one size; where a default is too large, the largest there is.

    Raises `CasesError` for a size that was asked for and that the model's pictures do not come near.
    """
    found: dict[int, tuple[Image.Image, Picture]] = {}
    for tokens in sorted(set(bench.options.pictures)):
        image, picture = picture_of(prompt_format, tokens)
        if picture.tokens < NEAR * tokens:
            most = f"a picture of this model takes {picture.tokens} tokens where {tokens} are allowed"
            if "pictures" in bench.options.asked:
                raise CasesError(most)
            bench.recorder.note(most)
        found.setdefault(picture.tokens, (image, picture))
    return list(found.values())


def picture_of(prompt_format: PromptFormat, tokens: int) -> tuple[Image.Image, Picture]:
    """A picture of noise, twice as wide as high, that takes as many tokens as it can, at most `tokens`.

    Raises `CasesError` where even the smallest picture takes more.
    """
    low, high = 0, LONGEST_SIDE // ASPECT // PIXELS_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _tokens(prompt_format, middle) <= tokens else (low, middle - 1)
    if not _tokens(prompt_format, low):
        raise CasesError(f"this model takes no picture of {tokens} tokens")
    height = low * PIXELS_STEP
    noise = np.random.default_rng(0).integers(0, 256, (height, ASPECT * height, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    return image, prompt_format.prepare_picture(image, NO_BUDGET)


def _tokens(prompt_format: PromptFormat, steps: int) -> int:
    """Tokens of a blank picture, `steps` steps of pixels high; none where it is too small to be taken."""
    if not steps:
        return 0
    size = (ASPECT * steps * PIXELS_STEP, steps * PIXELS_STEP)
    try:
        return prompt_format.prepare_picture(Image.new("RGB", size), NO_BUDGET).tokens
    except PictureError:
        return 0


def _theirs(reference: Reference, image: Image.Image, picture: Picture, marker: str) -> Callable[[], float]:
    """The reference's turn. Raises `PeerError` where it would do other work."""
    inputs = reference.picture_inputs(image, marker)
    patches, ours = reference.patches(inputs), picture.pixels.shape[0]
    if patches != ours:
        raise PeerError(f"transformers cuts the picture into {patches} patches, kaminari into {ours}")
    return partial(reference.encode, inputs)
