"""What lies before and behind a decoder layer's mixer, as compiled graphs that all layers of a network share.

torch.compile takes minutes for a whole network; here it sees two functions of one layer, each once for one
token and once for any number, whatever the network's depth. The mixer between them (attention, the gated
delta rule) reads slots and lengths through kernels of its own and stays as it is. Compiled are small steps
alone: prompts are a matter of products, which compiling makes no faster.

Inside a compiled part every small layer and linear runs in its plain form, which the compiler fuses; so what
is compiled is the same on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

from kaminari.config.folders import CODE_CACHE, FolderError, claim_code_cache
from kaminari.model.family import CheckpointError
from kaminari.model.kernels.native.program import refuse

MOST_TOKENS = 16
"""Steps of more tokens run uncompiled."""

Result = TypeVar("Result")


class PartedLayer(nn.Module):
    """A decoder layer that runs in parts.

    compiled:  small steps run the parts as compiled graphs
    """

    compiled = False

    def run(self, part: Callable[..., Result], hidden: Tensor, *others: Tensor) -> Result:
        """A part of this layer, called with the layer, hidden [T, hidden] and the others.

        Raises `CheckpointError` where it does not compile, or was compiled for too many other models, dtypes
        or counts of threads in this process.
        """
        if not self.compiled or hidden.shape[0] > MOST_TOKENS:
            return part(self, hidden, *others)
        refuse("compiled code")
        if hidden.shape[0] > 1:
            for tensor in (hidden, *others):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return _compiled(part)(self, hidden, *others)  # type: ignore[no-any-return]
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            raise CheckpointError(
                f"the decoder's layers do not compile here ({_reason(error)}); "
                "set KAMINARI_MODEL__COMPILE=off"
            ) from error


def compile_layers(network: nn.Module) -> None:
    """From now on small steps of the network's layers run compiled; the first of them compile.

    What the compiler makes is kept in kaminari's cache folder, which only its owner may write, unless
    `TORCHINDUCTOR_CACHE_DIR` names another. Raises `CheckpointError` where there is no such folder.
    """
    try:
        claim_code_cache()
    except FolderError as error:
        raise CheckpointError(f"model.compile: {error}; set {CODE_CACHE} to another") from error
    for layer in network.modules():
        if isinstance(layer, PartedLayer):
            layer.compiled = True


@cache
def _compiled(part: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(part, fullgraph=True)


def _reason(error: Exception) -> str:
    """The first line of what went wrong; where a backend failed, that of its own error."""
    if isinstance(error, FailOnRecompileLimitHit):
        return "this process compiled them for as many models, dtypes and counts of threads as torch allows"
    cause = getattr(error, "inner_exception", error)
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
