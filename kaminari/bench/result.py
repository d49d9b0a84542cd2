"""What a benchmark run found, as data: the schema of its JSON. Reads and writes it; measures nothing.

Times are in seconds, sizes in bytes, rates per second. Nothing here names a person's host or folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

OURS = "kaminari"


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Machine(Record):
    """Where it was measured. `accelerator` is the CUDA device's name, `cores` are those that may be used."""

    cpu: str
    cores: int
    memory: int
    accelerator: str | None
    system: str
    python: str
    torch: str
    transformers: str


class Subject(Record):
    """The model that was measured. `threads` are the CPU threads of every entrant.

    kernels:  the setting, where it is not `auto`
    """

    name: str
    family: str
    device: str
    dtype: str
    vision_dtype: str
    quantization: str
    threads: int
    weight_bytes: int
    kernels: str | None = None

    @property
    def weights(self) -> str:
        """What the decoder's weights are: its dtype, or those of a pack."""
        return self.dtype if self.quantization == "none" else self.quantization

    @property
    def precision(self) -> str:
        """The dtype of the decoder, and the pack that its weights come from."""
        return self.dtype if self.quantization == "none" else f"{self.quantization} beside {self.dtype}"


class Limits(Record):
    """What the machine can do, measured in this run; None where a suite has no use for it.

    read_rate:   bytes per second, reading `read_bytes` over and over
    multiply_rate:  floating-point operations per second of a large product in `multiply_dtype`
    file_rate:   bytes per second, reading the checkpoint's largest file from its disk
    cached_file_rate:  the same from the system's cache
    """

    read_rate: float | None = None
    read_bytes: int | None = None
    multiply_rate: float | None = None
    multiply_dtype: str | None = None
    file_rate: float | None = None
    cached_file_rate: float | None = None


class Spread(Record):
    """Seconds of `count` samples: the median, the lowest and the highest."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Raises `statistics.StatisticsError` without a sample."""
        return cls(median=statistics.median(samples), low=min(samples), high=max(samples), count=len(samples))


class Figure(Record):
    """One case of one entrant.

    floor:   the least seconds that the limits allow, or None where none follows
    values:  what else was found, such as `tokens_per_second`
    """

    entrant: str
    case: Mapping[str, int | float | str]
    seconds: Spread
    floor: float | None = None
    values: Mapping[str, float] = Field(default_factory=dict)

    @property
    def over_floor(self) -> float | None:
        """How many times the floor it took."""
        return None if not self.floor else self.seconds.median / self.floor

    @property
    def beats_its_limit(self) -> bool:
        """Whether it took less than its floor, or brought more than the limits allow a load."""
        limit = self.values.get("limit_tokens_per_second")
        loaded = limit is not None and self.values["tokens_per_second"] > limit
        return loaded or (self.over_floor is not None and self.over_floor < 1)


class Share(Record):
    """Where time went: seconds of one component per unit of work (a step, a prompt, a picture)."""

    case: Mapping[str, int | float | str]
    component: str
    seconds: float


class Result(Record):
    """One run of one suite. `complete` is False where it was interrupted: what was measured is here."""

    format: Literal[1] = 1
    suite: str
    command: str
    commit: str | None
    complete: bool
    machine: Machine
    subject: Subject
    limits: Limits
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...] = ()
    notes: tuple[str, ...] = ()

    def against_ours(self, figure: Figure) -> float | None:
        """How many times kaminari's median this figure's is, or None where kaminari has none."""
        for other in self.figures:
            if other.entrant == OURS and other.case == figure.case:
                return figure.seconds.median / other.seconds.median
        return None
