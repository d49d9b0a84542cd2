"""Greedy tokens through `StepBatch` equal the reference's: prompts, pictures, chunk borders, batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kaminari.model.family import VisionLanguageModel
from tests.checkpoints import VARIANTS
from tests.model.steps import Prompt, Row, ask, load, make_picture, noise_picture, prepare, run
from tests.reference import Greedy, Reference, assert_same_tokens

SIZES = ((32, 32), (33, 65), (64, 32), (256, 32), (32, 256), (200, 45), (45, 200), (96, 128), (130, 130))
MORE_SIZES = ((256, 256), (5, 60), (600, 40), (40, 600), (700, 500), (1, 1), (48, 47))

Models = Callable[[str], VisionLanguageModel]
Suites = Callable[[str], list[Prompt]]


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path]) -> Models:
    made: dict[str, VisionLanguageModel] = {}

    def of(variant: str) -> VisionLanguageModel:
        if variant not in made:
            made[variant] = load(checkpoint(variant))
        return made[variant]

    return of


@pytest.fixture(scope="module")
def suites(models: Models, golden: Callable[[str], Reference]) -> Suites:
    """Eight prompts of different lengths and kinds per variant, with the reference's answers."""
    made: dict[str, list[Prompt]] = {}

    def of(variant: str) -> list[Prompt]:
        if variant not in made:
            turns = [
                ask("Hello, who are you?"),
                ask(noise_picture(1, 96, 64), "What is it?"),
                ask("one two three four " * 20),
                ask("First ", noise_picture(2, 64, 64), " then ", noise_picture(3, 160, 40), "?"),
                ask("a"),
                [
                    ("user", [noise_picture(4, 128, 96), "Read."]),
                    ("assistant", ["It says 12."]),
                    ("user", ["Are you sure?"]),
                ],
                ask(noise_picture(5, 256, 256)),
                [("system", ["Be brief."]), ("user", ["What is 3+4?"])],
            ]
            made[variant] = [prepare(models(variant), golden(variant), each) for each in turns]
        return made[variant]

    return of


def answers(rows: list[Row]) -> list[tuple[list[int], Greedy]]:
    return [(row.answer, row.prompt.golden) for row in rows]


@pytest.mark.parametrize("variant", VARIANTS)
def test_alone(variant: str, models: Models, suites: Suites) -> None:
    model = models(variant)
    cache = model.new_cache(2, 400)
    rows = [Row(prompt, slot=number % 2) for number, prompt in enumerate(suites(variant))]
    for row in rows:
        run(model, cache, [row])
    assert_same_tokens(answers(rows))


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_batches_of_prefill_and_decode_rows(
    variant: str, size: int, models: Models, suites: Suites
) -> None:
    """Rows join at different steps, in chunks of their own, in slots out of order, and change places."""
    model = models(variant)
    slots = [5, 0, 7, 2, 6, 1, 4, 3]
    rows = [
        Row(prompt, slot=slots[number], chunk=(7, 19, 64, 1000)[number % 4], wait=3 * (number % 3))
        for number, prompt in enumerate(suites(variant))
    ]
    for first in range(0, len(rows), size):
        run(model, model.new_cache(8, 400), rows[first : first + size], seed=first)
    assert_same_tokens(answers(rows))


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
def test_chunks_that_cut_pictures(chunk: int, models: Models, suites: Suites) -> None:
    model = models("untied-wide")
    rows = [Row(prompt, slot=0, chunk=chunk) for prompt in suites("untied-wide") if prompt.features]
    for row in rows:
        run(model, model.new_cache(1, 400), [row])
    assert_same_tokens(answers(rows))


def test_prompt_lengths_around_every_chunk_border(models: Models, golden: Callable[[str], Reference]) -> None:
    model, reference = models("tied-grouped"), golden("tied-grouped")
    overhead = prepare(model, reference, ask("x"), max_tokens=1).length - 1
    rows = []
    for chunk in (16, 32, 50):
        for length in (chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1):
            if length > overhead:
                text = "".join("qzxkv"[number % 5] for number in range(length - overhead))
                prompt = prepare(model, reference, ask(text), max_tokens=8)
                assert prompt.length == length
                rows.append(Row(prompt, slot=1, chunk=chunk))
    for row in rows:
        run(model, model.new_cache(2, 128), [row])
    assert_same_tokens(answers(rows))


@pytest.mark.parametrize("variant", ["tied-grouped", "untied-wide"])
def test_sizes_and_aspect_ratios(variant: str, models: Models, golden: Callable[[str], Reference]) -> None:
    model, reference = models(variant), golden(variant)
    rows = []
    for number, (width, height) in enumerate(SIZES + (MORE_SIZES if variant == "untied-wide" else ())):
        picture = noise_picture(number, width, height)
        prompt = prepare(model, reference, ask(picture, "Read."), max_tokens=8)
        assert prompt.features is not None
        rows.append(Row(prompt, slot=number % 3, chunk=40))
    lengths = {row.prompt.length for row in rows}
    assert len(lengths) > 5
    for row in rows:
        run(model, model.new_cache(3, 200), [row])
    assert_same_tokens(answers(rows))


def test_other_pictures_give_other_vision_rows_and_none_sees_another(models: Models) -> None:
    """Two grids in one call stay apart: each has the rows that it has alone."""
    model = models("untied-wide")
    pixels = torch.randn(8 * 4 + 4 * 6, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(0))
    first, second = make_picture(pixels[:32], (1, 8, 4)), make_picture(pixels[32:], (1, 4, 6))
    both = replace(first, pixels=pixels.numpy(), grids=first.grids + second.grids, tokens=14)
    together = model.encode_picture(both)
    apart = [model.encode_picture(each) for each in (first, second)]
    torch.testing.assert_close(together.embeddings, torch.cat([each.embeddings for each in apart]))
    torch.testing.assert_close(together.deepstack, torch.cat([each.deepstack for each in apart], dim=1))
    changed = replace(both, pixels=pixels.clone().index_fill(0, torch.arange(32, 56), 0.5).numpy())
    assert torch.equal(model.encode_picture(changed).embeddings[:8], together.embeddings[:8])
    assert not torch.equal(model.encode_picture(changed).embeddings[8:], together.embeddings[8:])
