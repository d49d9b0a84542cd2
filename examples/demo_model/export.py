"""Make a checkpoint of a training: bfloat16 weights that `transformers` and kaminari load alike.

    python -m examples.demo_model.export RUN FOLDER

Run it from the project's root. Configuration, tokenizer and template are copied from the demo's folder,
or from the one that `--model` names.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.demo_model.train import DEMO
from examples.demo_model.training_state import StateError, exported_weights

WEIGHTS = "model.safetensors"
_COPIED = ("*.json", "*.jinja")


def export(run: Path, folder: Path, model: Path = DEMO) -> Path:
    """Write a checkpoint of what stands in `run` and return the file of its weights.

    Raises `StateError`; `FileExistsError` for a folder that is there already; `OSError`.
    """
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in exported_weights(run).items()}
    folder.mkdir(parents=True)
    for pattern in _COPIED:
        for file in model.glob(pattern):
            shutil.copy(file, folder)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder / WEIGHTS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a checkpoint of a training.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a training")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the checkpoint, a new folder")
    parser.add_argument("--model", type=Path, default=DEMO, help="where the other files are from (the demo)")
    args = parser.parse_args(arguments)
    try:
        file = export(args.run, args.folder, args.model)
    except (StateError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
