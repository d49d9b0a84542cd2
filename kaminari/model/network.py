"""From an open checkpoint to a network with its weights on the device, some of them from a pack."""

from __future__ import annotations

from torch import Tensor, nn

from kaminari.model.compiled_layers import compile_layers
from kaminari.model.family import LoadOptions
from kaminari.model.kernels.linears import linear_kernel
from kaminari.model.layers import Embedding
from kaminari.model.linear import Linear
from kaminari.model.loading import OpenCheckpoint, load_tensors, materialize
from kaminari.model.packs.placing import PackedMatrices


def load_network(
    checkpoint: OpenCheckpoint, text: nn.Module, vision: nn.Module, options: LoadOptions
) -> None:
    """Load every weight onto the device, each half of the network in its dtype. Raises `CheckpointError`."""
    packed = None if options.pack is None else PackedMatrices(checkpoint, options.pack)
    if packed is not None:
        packed.release()
    materialize(text, options.device, options.dtype)
    materialize(vision, options.device, options.vision_dtype)
    placements = checkpoint.placements if packed is None else packed.rest
    plain = sum(checkpoint.tensors[name].nbytes for name in placements)
    total = plain if packed is None else plain + packed.nbytes
    report = options.progress or (lambda done, total: None)
    load_tensors(
        checkpoint.network,
        checkpoint.tensors,
        placements,
        progress=lambda done, _: report(done, total),
    )
    _give_kernels(text, options)
    if packed is not None:
        packed.fill(options.device, options.dtype, lambda done: report(plain + done, total))
    if options.compiled:
        compile_layers(text)


def _give_kernels(text: nn.Module, options: LoadOptions) -> None:
    """Let our own kernels multiply by the decoder's plain weights, where there are any for them."""
    tied = getattr(text, "own_head", None) is None
    for part in text.modules():
        if isinstance(part, Linear) or (tied and isinstance(part, Embedding)):
            weight: Tensor | None = part.weight
            if weight is not None:
                part.kernel = linear_kernel(weight, options.device, options.dtype)
