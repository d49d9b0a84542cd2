"""Write a checkpoint with the true sizes of a released model and random weights, for measurements offline.

    python -m benchmarks.make_checkpoint minicpm-v-4.6 ../random-minicpm-v

`transformers` and kaminari load it as they load the released one. Weights are bfloat16 noise, scaled so that
activations stay finite and greedy answers vary; the answers mean nothing. The stand-in tokenizer has one
token per byte and a spelling for every other id, so that every drawn token is a piece of text; `--tokenizer`
takes a released one in its place. No more than a shard is ever in memory. Downloads nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.released import RELEASED, Released
from tests.checkpoints import build_tokenizer, save_tokenizer, write_json

SHARD_BYTES = 512 << 20
DRAWN_AT_ONCE = 1 << 24  # values in float32, which become half as many bytes
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
ENDS = ("<|im_end|>", "<|endoftext|>")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Write a random checkpoint with the sizes of a released model."
    )
    parser.add_argument("model", choices=sorted(RELEASED))
    parser.add_argument("folder", type=Path, help="a new folder, outside the repository")
    parser.add_argument("--tokenizer", type=Path, help="a folder with the released tokenizer.json")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.folder.exists() and any(args.folder.iterdir()):
        parser.error(f"{args.folder} is not empty")
    if args.tokenizer is not None and not (args.tokenizer / TOKENIZER_FILES[0]).is_file():
        parser.error(f"no {TOKENIZER_FILES[0]} in {args.tokenizer}")
    released = RELEASED[args.model]
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(released, args.folder, args.tokenizer)
    parameters = write_weights(released, args.folder, tokenizer, args.seed)
    print(f"{args.folder}: {args.model} with {parameters:,} random parameters")
    return 0


def write_tokenizer(released: Released, folder: Path, source: Path | None) -> Tokenizer:
    """Write tokenizer, template and preprocessor configuration."""
    if source is None:
        tokenizer = stand_in_tokenizer(released)
        save_tokenizer(tokenizer, folder, released.special, released.named)
    else:
        for name in TOKENIZER_FILES:
            shutil.copyfile(source / name, folder / name)
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    if source is not None and (source / "chat_template.jinja").is_file():
        shutil.copyfile(source / "chat_template.jinja", folder / "chat_template.jinja")
    else:
        shutil.copyfile(released.template, folder / "chat_template.jinja")
    write_json(folder / "preprocessor_config.json", dict(released.preprocessor))
    return tokenizer


def stand_in_tokenizer(released: Released) -> Tokenizer:
    """The tests' tokenizer with its added tokens last, and a spelling for every id between."""
    content = json.loads(build_tokenizer(released.special).to_str())
    vocab, added = content["model"]["vocab"], content["added_tokens"]
    first_added = released.vocab - len(added)
    for number in range(len(vocab), first_added):
        vocab[f"Ġw{number}"] = number
    for place, token in enumerate(added):
        token["id"] = first_added + place
    return Tokenizer.from_str(json.dumps(content))


def write_weights(released: Released, folder: Path, tokenizer: Tokenizer, seed: int) -> int:
    """Write config, generation config and all weights; returns the number of parameters."""
    ids = {spelling: tokenizer.token_to_id(spelling) for spelling in released.special}
    if unknown := [spelling for spelling, number in ids.items() if number is None]:
        raise SystemExit(f"the tokenizer lacks {', '.join(unknown)}")
    with torch.device("meta"):
        model = released.model(released.config(ids))
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.bfloat16
    model.config.save_pretrained(folder)
    ends = [ids[spelling] for spelling in ENDS]
    write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]},
    )
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    total = sum(prod(shape) for shape in shapes.values())
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    with Progress() as progress:
        task = progress.add_task("Writing weights", total=total)
        for number, names in zip(count(1), shards(shapes)):
            file = f"model-{number:05}.safetensors"
            tensors = {}
            for name in names:
                tensors[name] = draw(released, name, shapes[name], generator)
                progress.advance(task, prod(shapes[name]))
            save_file(tensors, folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(names, file)
    index: dict[str, Any] = {"metadata": {"total_size": 2 * total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)
    return total


def shards(shapes: Mapping[str, torch.Size]) -> Iterator[list[str]]:
    """Names in order, as many at a time as fit a shard; a larger tensor has one to itself."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        nbytes = 2 * prod(shape)
        if names and size + nbytes > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += nbytes
    yield names


def draw(released: Released, name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """A parameter's weight in bfloat16, drawn a few rows at a time."""
    weight = torch.empty(shape, dtype=torch.bfloat16)
    rows = max(1, DRAWN_AT_ONCE // prod(shape[1:]))
    for part in weight.split(rows):
        part.copy_(released.widen(name, torch.empty(part.shape).normal_(generator=generator)))
    return weight


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
