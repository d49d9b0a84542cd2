"""The small layers against the reference's modules, bit for bit where the order of operations is theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextMLP,
    Qwen3VLTextRMSNorm,
    Qwen3VLTextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from kaminari.model.layers import RMSNorm, SwiGLU
from kaminari.model.rotary import InterleavedRotary, rotate

DTYPES = [torch.float32, torch.bfloat16]


def text_config(**kwargs: Any) -> Qwen3VLTextConfig:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    rope |= kwargs.pop("rope", {})
    sizes = {"hidden_size": 48, "intermediate_size": 80, "head_dim": 32, "max_position_embeddings": 512}
    return Qwen3VLTextConfig(**sizes, rope_parameters=rope, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_is_the_references(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs, ours = Qwen3VLTextRMSNorm(48, eps=1e-6).to(dtype), RMSNorm(48, eps=1e-6)
    theirs.weight.data.normal_()
    ours.weight.data = theirs.weight.data
    x = (torch.randn(7, 48) * 30).to(dtype)
    assert ours.plain(x).dtype == dtype
    assert torch.equal(ours.plain(x), theirs(x))
    for zeros in (ours(torch.zeros_like(x)), ours.plain(torch.zeros_like(x))):
        assert torch.equal(zeros, torch.zeros_like(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_is_the_references_with_its_weights_fused(dtype: torch.dtype) -> None:
    """Fused products may sum in another order: float32 to 1e-5, bfloat16 to two of its steps."""
    torch.manual_seed(0)
    theirs, ours = Qwen3VLTextMLP(text_config()).to(dtype), SwiGLU(48, 80)
    ours.gate_up.weight.data = torch.cat((theirs.gate_proj.weight, theirs.up_proj.weight)).data
    ours.down.weight.data = theirs.down_proj.weight.data
    x = torch.randn(5, 48).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(ours(x), theirs(x).detach(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"mrope_section": [4, 6, 6]},
        {"mrope_section": [16, 0, 0]},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
    ],
)
def test_rotary_is_the_references(rope: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs = Qwen3VLTextRotaryEmbedding(text_config(rope=rope))
    ours = InterleavedRotary(theirs.inv_freq, theirs.mrope_section, theirs.attention_scaling)
    positions = torch.randint(0, 500, (3, 11))
    q, k = torch.randn(11, 4, 32).to(dtype), torch.randn(11, 2, 32).to(dtype)
    their_cos, their_sin = theirs(q, positions[:, None])
    cos, sin = ours(positions, dtype)
    assert cos.dtype == sin.dtype == dtype
    assert torch.equal(cos[:, 0], their_cos[0])
    assert torch.equal(sin[:, 0], their_sin[0])
    their_q, their_k = apply_rotary_pos_emb(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], their_cos, their_sin
    )
    assert torch.equal(rotate(q, cos, sin), their_q[0].transpose(0, 1))
    assert torch.equal(rotate(k, cos, sin), their_k[0].transpose(0, 1))
    if not rope:
        assert not torch.equal(cos, ours(positions.flip(0), dtype)[0])
