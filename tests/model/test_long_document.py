"""A document of 10k tokens with a phrase planted at 60 %: the next tokens are the reference's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.model.steps import Prompt, Row, load, run
from tests.reference import Greedy, Reference, assert_same_tokens, reference_greedy

TOKENS, PLANTED_AT = 10_000, 0.6
PHRASES = ("The code of the blue door is 7421.", "The code of the blue door is 9036.")


def document(phrase: str) -> str:
    """Lines of random words and a question, about as many bytes as tokens."""
    rng = random.Random(60)
    letters = "bcdfgklmnprstvw"
    words = []
    while (size := sum(map(len, words))) < TOKENS + 600:
        if size > PLANTED_AT * TOKENS and phrase not in words:
            words.append(phrase)
        words.append("".join(rng.choices(letters, k=rng.randint(2, 9))) + rng.choice("  \n"))
    return "".join(words) + "\nWhat is the code of the blue door? "


@pytest.mark.parametrize("variant", ["minicpm_v", "qwen3_5"])
@torch.inference_mode()
def test_the_next_tokens_are_the_references(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    model = load(checkpoint(variant))
    pairs: list[tuple[list[int], Greedy]] = []
    for phrase in PHRASES:
        wanted = reference_greedy(golden(variant), document(phrase), max_tokens=8, ignore_eos=True)
        length = len(wanted.prompt_ids)
        assert TOKENS <= length < 1.2 * TOKENS
        positions = torch.arange(length).expand(3, -1)
        prompt = Prompt(torch.tensor(wanted.prompt_ids), positions, 0, None, wanted)
        cache = model.new_cache(1, length + 8)
        cache.claim(0)
        row = Row(prompt, slot=0, chunk=512)
        run(model, cache, [row])
        pairs.append((row.answer, wanted))
    assert_same_tokens(pairs)
    # The phrase reaches the end of the document: another one leaves other logits there.
    assert pairs[0][1].gaps[0] != pairs[1][1].gaps[0]
