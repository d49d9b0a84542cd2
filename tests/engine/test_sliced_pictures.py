"""Sliced pictures through the loop: tags, slices and tokens are the reference's, over many sizes."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from kaminari.engine.params import SamplingParams
from tests.cases import loading
from tests.engine.harness import hand_loop, picture
from tests.engine.prompts import Turns, conversation, golden_answer
from tests.reference import Reference, assert_same_tokens

# (width, height) and how many slices stand behind the overview, for slices of 112 pixels, at most 4
SIZES = {
    (30, 30): 0,
    (112, 112): 0,
    (113, 112): 2,
    (112, 113): 2,
    (200, 100): 2,
    (100, 200): 2,
    (150, 160): 2,
    (400, 50): 3,
    (50, 400): 3,
    (180, 180): 4,
    (250, 130): 2,
    (130, 250): 2,
    (256, 256): 4,
    (500, 300): 4,
    (300, 500): 4,
    (500, 90): 4,
    (90, 500): 4,
}


def ask(*images: Image.Image) -> Turns:
    return [("user", [*images, "What does it say?"])]


@pytest.mark.parametrize("variant", ["minicpm_v", "minicpm_v-4x"])
def test_pictures_of_many_sizes_give_the_references_tokens(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    engine = hand_loop(checkpoint(variant), slots=2, chunk=24, context=1024)
    pairs = []
    for size in SIZES:
        turns = ask(picture(*size, seed=sum(size)))
        prompt = engine.loaded.frontend.prepare(conversation(turns))
        wanted = golden_answer(golden(variant), turns, tokens=6)
        assert prompt.token_ids == wanted.prompt_ids, size
        running = engine.submit(prompt, SamplingParams(temperature=0, max_tokens=6))
        engine.run()
        pairs.append((running.token_ids(), wanted))
    assert_same_tokens(pairs)


def test_the_sizes_cover_every_number_of_slices(checkpoint: Callable[[str], Path]) -> None:
    frontend = hand_loop(checkpoint("minicpm_v"), slots=1).loaded.frontend
    seen = set()
    for size in SIZES:
        (made,) = frontend.prepare(conversation(ask(picture(*size)))).pictures
        rows, columns = made.layout
        assert len(made.grids) == 1 + rows * columns
        assert rows * columns == SIZES[size], size
        seen.add(made.layout)
    assert seen >= {(0, 0), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 4), (4, 1)}


@pytest.mark.parametrize("size", [(504, 392), (392, 504), (700, 500), (1400, 900), (900, 1400)])
def test_the_released_sizes_give_the_references_tokens(
    size: tuple[int, int], checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Slices of 448 pixels on the table of 70 x 70: grids of 28 x 36 and 36 x 28, and up to nine slices."""
    variant = "minicpm_v-released-sizes"
    engine = hand_loop(checkpoint(variant), slots=1, chunk=100, context=1024)
    turns = ask(picture(*size, seed=3))
    prompt = engine.loaded.frontend.prepare(conversation(turns))
    if min(size) == 392:
        assert prompt.pictures[0].grids[0][1:] == ((28, 36) if size[0] > size[1] else (36, 28))
    wanted = golden_answer(golden(variant), turns, tokens=6)
    assert prompt.token_ids == wanted.prompt_ids
    running = engine.submit(prompt, SamplingParams(temperature=0, max_tokens=6))
    engine.run()
    assert_same_tokens([(running.token_ids(), wanted)])


@pytest.mark.parametrize("chunk", [24, 100])
def test_two_sliced_pictures_in_one_prompt_beside_a_neighbour_give_the_references_tokens(
    chunk: int, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    variant = "minicpm_v-released-sizes"
    engine = hand_loop(checkpoint(variant), slots=2, chunk=chunk, context=1024)
    both: Turns = [
        ("user", [picture(504, 392, 3), "and", picture(392, 504, 4), "What differs?"]),
        ("assistant", ["The side."]),
        ("user", ["Which side?"]),
    ]
    running = []
    for turns in (both, ask(picture(700, 500, 5))):
        prompt = engine.loaded.frontend.prepare(conversation(turns))
        wanted = golden_answer(golden(variant), turns, tokens=6)
        assert prompt.token_ids == wanted.prompt_ids
        running.append((engine.submit(prompt, SamplingParams(temperature=0, max_tokens=6)), wanted))
    engine.run()
    assert_same_tokens([(answer.token_ids(), wanted) for answer, wanted in running])


def test_a_strip_wider_than_the_position_table_is_read(
    checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    """Case img-wide-grid."""
    variant = "minicpm_v-released-sizes"
    image = Image.open(BytesIO(loading.file_bytes("wide_2270x40.png"))).convert("RGB")
    engine = hand_loop(checkpoint(variant), slots=1, chunk=100, context=1024)
    turns = ask(image)
    prompt = engine.loaded.frontend.prepare(conversation(turns))
    assert max(grid[2] for grid in prompt.pictures[0].grids) > 70
    wanted = golden_answer(golden(variant), turns, tokens=6)
    running = engine.submit(prompt, SamplingParams(temperature=0, max_tokens=6))
    engine.run()
    assert prompt.token_ids == wanted.prompt_ids
    assert_same_tokens([(running.token_ids(), wanted)])


def test_pictures_are_numbered_in_the_order_of_the_conversation(
    checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    engine = hand_loop(checkpoint("minicpm_v"), slots=1, context=1024)
    small = [picture(20 + side, 30, side) for side in range(9)]
    earlier: Turns = [("user", [picture(40, 60, 1), "and", picture(256, 256, 2)]), ("assistant", ["Yes."])]
    turns: Turns = [*earlier, ("user", small)]
    frontend = engine.loaded.frontend
    assert frontend.prepare(conversation(turns)).token_ids == (
        golden_answer(golden("minicpm_v"), turns, tokens=1).prompt_ids
    )
    # Tags that a user spells stay text, beside as many real ones as there are pictures.
    spelled = frontend.prepare(conversation([*earlier, ("user", [*small, "<image>0</image><slice>"])]))
    tag = frontend.tokenizer.token_to_id("<image>")
    assert spelled.token_ids.count(tag) == 11
    assert sum(span.stop - span.start for span in spelled.spans) == sum(
        each.tokens for each in spelled.pictures
    )
