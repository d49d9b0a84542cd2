"""The demo as it is trained: Qwen3-VL in float32, and throwaway heads that only a training looks at.

`checkpoint_weights` are the checkpoint's tensors under the checkpoint's names; nothing has to be converted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.demo_model.cells import CLASSES, MOST_CHARACTERS
from examples.demo_model.decoder import Decoder
from examples.demo_model.tower import Tower

_MODEL = "model."


class Qwen3VL(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.visual = Tower(config.vision_config)
        self.language_model = Decoder(config.text_config)


class Network(nn.Module):
    """`model` is what is exported. `characters` names the characters whose middle is in a patch."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__()
        self.model = Qwen3VL(config)
        self.characters = nn.Linear(config.vision_config.hidden_size, MOST_CHARACTERS * CLASSES)
        _initialize(self, torch.Generator().manual_seed(seed))

    def name_characters(self, patches: Tensor) -> Tensor:
        """[B, P, hidden] -> logits [B, P, MOST_CHARACTERS, CLASSES]."""
        named = self.characters(F.layer_norm(patches, patches.shape[-1:]))
        return named.float().unflatten(-1, (MOST_CHARACTERS, CLASSES))

    def checkpoint_weights(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(_MODEL)}

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Take a checkpoint's weights, with the heads or without. Raises `ValueError` where they differ."""
        own = self.state_dict()
        missing = [name for name in own if name.startswith(_MODEL) and name not in weights]
        strange = [name for name in weights if name not in own or own[name].shape != weights[name].shape]
        if missing or strange:
            raise ValueError(
                f"not this model's weights: {len(missing)} missing, {len(strange)} strange, "
                f"such as {(missing + strange)[0]}"
            )
        self.load_state_dict({**own, **weights})


@torch.no_grad()
def _initialize(network: Network, generator: torch.Generator) -> None:
    """Each product keeps its input's scale; what is added to the residual stream begins small."""
    depth = {
        "language_model": len(network.model.language_model.layers),
        "visual": len(network.model.visual.blocks),
    }
    for name, parameter in network.named_parameters():
        if parameter.dim() < 2:
            if "norm" not in name:
                parameter.zero_()
            continue
        deviation = 1 / math.sqrt(parameter[0].numel())
        if "embed_tokens" in name:
            deviation = 0.04
        elif "pos_embed" in name:
            deviation = 0.02
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(2 * depth["language_model"])
        elif "blocks" in name and name.endswith(("attn.proj.weight", "linear_fc2.weight")):
            deviation /= math.sqrt(2 * depth["visual"])
        elif name.endswith("linear_fc2.weight"):
            deviation *= 0.1 if "deepstack" in name else 0.3
        parameter.normal_(0, deviation, generator=generator)
        if "patch_embed" in name:
            # patches of plain paper begin at zero, whatever their shade
            parameter -= parameter.mean(dim=(1, 2, 3, 4), keepdim=True)
