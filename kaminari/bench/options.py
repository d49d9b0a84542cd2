"""What a person asks of a benchmark, checked and with its defaults settled; no model is looked at here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HF = "hf"
LLAMA_CPP = "llama.cpp"
READING = "reading"

BATCHES = (1, 2, 4, 8)
CONTEXTS = (512, 2048)
PROMPTS = (512, 2048, 5120, 8192, 10240)
PICTURES = (512, 1024)
CLIENTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured, and against whom.

    rounds:     how often everybody takes a turn in every case
    tokens:     tokens per row in a turn of decoding, and of an answer of the server
    asked:      names of the lengths that the person gave: those are measured or refused, never left out
    rungs:      of the ladder, or all that the model has
    pack:       the folder of a pack that the ladder's rung of its format runs from
    requests:   per client and level of the load
    pictures_share:  of the requests of the load, from 0 to 1
    rate:       requests per second of the open loop; None: 0.7 of what the closed loop reached
    hf:         whether `transformers` takes part
    reading:    whether reading as many bytes as a step takes part
    llama_cpp:  the folder of a build, or None
    gguf:       the same model for that build
    profile:    whether time is attributed to components
    """

    rounds: int = 5
    tokens: int = 8
    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS
    prompts: tuple[int, ...] = PROMPTS
    pictures: tuple[int, ...] = PICTURES
    clients: tuple[int, ...] = CLIENTS
    asked: frozenset[str] = frozenset()
    rungs: tuple[str, ...] = ()
    pack: Path | None = None
    requests: int = 4
    pictures_share: float = 0.5
    rate: float | None = None
    hf: bool = False
    reading: bool = False
    llama_cpp: Path | None = None
    gguf: Path | None = None
    profile: bool = False
