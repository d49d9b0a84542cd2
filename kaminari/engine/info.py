"""What an engine says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from kaminari.engine.step_clock import StepCounts


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Fixed once an engine is loaded.

    model:       the served name
    context:     tokens per slot
    vocab_size:  token ids are below it
    choices:     the most choices (n) that one request may ask for
    aliases:     other names that requests may use for the model
    kernels:     whose kernels run: on a CPU as `native avx2` or `aten (no C++ compiler)`, on CUDA those of
                 attention, as `Triton for decode and varlen_attn for prompts`
    pipeline_depth:
                 steps in flight
    prefill_chunk:
                 most prompt tokens in one step
    """

    model: str
    family: str
    device: str
    dtype: str
    vision_dtype: str
    quantization: str
    slots: int
    context: int
    vocab_size: int
    choices: int
    weight_bytes: int
    cache_bytes: int
    demo: bool
    aliases: tuple[str, ...] = ()
    kernels: str = ""
    pipeline_depth: int = 1
    prefill_chunk: int = 512

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the model is served under, its own first."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A glance from any thread.

    alive:    the engine's thread runs
    stalled:  work waits and no step has ended for longer than the setting allows
    counts:   where the engine's thread has spent its time
    """

    alive: bool
    stalled: bool
    waiting: int
    running: int
    free_slots: int
    counts: StepCounts = field(default_factory=StepCounts)
