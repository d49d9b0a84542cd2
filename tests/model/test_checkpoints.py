"""The tiny checkpoints are worth comparing against: answers vary, pictures matter, near ties are rare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.checkpoints import VARIANTS
from tests.model.steps import noise_picture
from tests.reference import NEAR_TIE, Reference, reference_greedy


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_answers_vary_and_see_the_picture(variant: str, golden: Callable[[str], Reference]) -> None:
    reference = golden(variant)
    answers = []
    for seed in range(3):
        content = [{"type": "image"}, {"type": "text", "text": "Read it."}]
        text = reference.render([{"role": "user", "content": content}])
        picture = noise_picture(seed, 96, 64)
        answers.append(reference_greedy(reference, text, [picture], max_tokens=24, ignore_eos=True))
    assert sum(len(set(answer.token_ids)) for answer in answers) >= 3 * 8
    assert len({answer.token_ids for answer in answers}) == 3
    gaps = [gap for answer in answers for gap in answer.gaps]
    assert sum(gap < NEAR_TIE for gap in gaps) <= 1


def test_the_tokenizer_file_and_the_reference_agree(tiny_checkpoint: Path, tiny_reference: Reference) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    text = "Héllo the<|im_end|> <tool_call>x</tool_call> <think> don't\n\n 12 日本 e\u0301"
    assert tokenizer.encode(text).ids == tiny_reference.processor.tokenizer.encode(text)
    assert tokenizer.token_to_id("<|im_end|>") in tokenizer.encode(text).ids


def test_the_sharded_variant_has_an_index_and_several_files(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sharded")
    assert (folder / "model.safetensors.index.json").is_file()
    assert len(list(folder.glob("*.safetensors"))) > 2
