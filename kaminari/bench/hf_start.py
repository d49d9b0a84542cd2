"""`python -m kaminari.bench.hf_start FOLDER DEVICE DTYPE`: a process that loads `transformers` and answers.

Prints a line when the model is loaded and a line when it has made one token.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from kaminari.bench.hf import Reference


def main(folder: str, device: str, dtype: str) -> None:
    with torch.inference_mode():
        reference = Reference(Path(folder), torch.device(device), getattr(torch, dtype))
        _say("ready")
        reference.prefill([0, 1])
        _say("answered")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
