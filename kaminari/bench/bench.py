"""What every suite gets: the loaded model, the options, the limits, the peers, and where samples go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from kaminari.bench.hf import Reference
from kaminari.bench.limits import multiply_rate, read_rate
from kaminari.bench.llama_cpp import LlamaCpp
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import Limits
from kaminari.bench.subject import LoadedSubject


@dataclass
class Bench:
    """One run over a loaded model."""

    subject: LoadedSubject
    options: Options
    recorder: Recorder
    llama_cpp: LlamaCpp | None = None
    limits: Limits = field(default_factory=Limits)

    def measure_limits(self) -> Limits:
        """Measure what the machine can do with this model's dtype and size; called again, keep the best."""
        self.recorder.starting("the machine's limits")
        device, dtype = self.subject.device, self.subject.plan.dtypes.decoder
        rate, size = read_rate(device, dtype, self.subject.work.weight_bytes)
        known = self.limits
        self.limits = Limits(
            read_rate=max(rate, known.read_rate or 0.0),
            read_bytes=size,
            multiply_rate=max(multiply_rate(device, dtype), known.multiply_rate or 0.0),
            multiply_dtype=str(dtype).removeprefix("torch."),
        )
        return self.limits

    @cached_property
    def reference(self) -> Reference | None:
        """The peer `transformers`, loaded when it is first asked for; None where it takes no part."""
        if not self.options.hf:
            return None
        self.recorder.starting("loading transformers")
        return Reference(self.subject.plan.folder, self.subject.device, self.subject.plan.dtypes.decoder)


Suite = Callable[[Bench], None]
