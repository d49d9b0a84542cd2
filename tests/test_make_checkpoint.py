"""`benchmarks.make_checkpoint`: the released sizes, the stand-in tokenizer, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.make_checkpoint import SHARD_BYTES, draw, main, shards, stand_in_tokenizer
from benchmarks.released import RELEASED

PARAMETERS = {"qwen3-vl-2b": 2_127_532_032, "minicpm-v-4.6": 1_300_428_016}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_model_has_as_many_parameters_as_the_released_one(name: str) -> None:
    released = RELEASED[name]
    ids = {spelling: number for number, spelling in enumerate(released.special)}
    with torch.device("meta"):
        model = released.model(released.config(ids))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert sum(shape.numel() for shape in shapes.values()) == PARAMETERS[name]
    parts = list(shards(shapes))
    assert [name for names in parts for name in names] == list(shapes)
    for names in parts:
        assert len(names) == 1 or sum(2 * shapes[name].numel() for name in names) <= SHARD_BYTES


def test_every_id_of_the_stand_in_tokenizer_has_a_spelling() -> None:
    released = RELEASED["minicpm-v-4.6"]
    tokenizer = stand_in_tokenizer(released)
    assert tokenizer.get_vocab_size() == released.vocab
    assert all(tokenizer.id_to_token(number) for number in range(released.vocab))
    assert tokenizer.decode([300, 5000]) == " w300 w5000"
    text = "A line.\n" + "".join(released.special)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert len(tokenizer.encode(released.special[-1]).ids) == 1


def test_weights_are_drawn_alike_from_one_seed() -> None:
    released = RELEASED["minicpm-v-4.6"]
    name, shape = "model.language_model.layers.0.mlp.down_proj.weight", torch.Size((1 << 14, 1 << 11))
    first, second = (draw(released, name, shape, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.float().std().item() == pytest.approx(3.0 / (1 << 11) ** 0.5, rel=0.01)


@pytest.mark.parametrize("fault", ["folder in use", "no tokenizer"])
def test_what_is_refused(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["minicpm-v-4.6", str(tmp_path / "new")]
    if fault == "folder in use":
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "note.txt").write_text("mine")
    else:
        arguments += ["--tokenizer", str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert ("is not empty" if fault == "folder in use" else "no tokenizer.json") in capsys.readouterr().err
