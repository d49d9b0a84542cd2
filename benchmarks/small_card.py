"""Run a kaminari command as on a card with less memory: torch's allocator is held to a number of bytes.

    python -m benchmarks.small_card 6GB bench decode ../random-qwen3-vl --memory-limit 5GB

What torch does not allocate (the context and the libraries' own workspaces, about 0.4 GB) comes on top, as
on every card. `--memory-limit` is needed beside it: the driver still reports the whole card as free.
Without CUDA it refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError

from kaminari.cli.main import main as kaminari


def main(argv: Sequence[str]) -> int:
    if len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        held = TypeAdapter(ByteSize).validate_python(argv[0])
    except ValidationError:
        print(f"the first argument is the card's memory, such as 6GB, not {argv[0]!r}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("there is no CUDA device whose memory could be held", file=sys.stderr)
        return 1
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, held / total))
    code = kaminari(list(argv[1:]))
    print(f"peak of torch's allocator: {torch.cuda.max_memory_reserved() / 1e9:.2f} GB", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
