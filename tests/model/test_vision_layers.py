"""Vision attention never takes the plain form, whose scores would fill the memory for a large picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.config import DtypeChoice, Folder, ModelSettings
from kaminari.engine.loading import load_model
from kaminari.model.family import PictureBudget
from kaminari.model.fused_attention import fused_attention
from kaminari.model.kernels import cpu_attention
from kaminari.model.vision_layers import attend
from tests.engine.harness import picture, settings


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
def test_every_tower_attends_where_the_plain_form_is_forbidden(
    variant: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(settings(checkpoint(variant)))
    allowed: list[bool] = []
    attention = F.scaled_dot_product_attention

    def watched(*inputs: Tensor, **options: Any) -> Tensor:
        allowed.append(torch.backends.cuda.math_sdp_enabled())
        return attention(*inputs, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    prepared = loaded.frontend._format.prepare_picture(picture(96, 64), PictureBudget(256))
    with torch.inference_mode():
        assert loaded.model.encode_picture(prepared).embeddings.isfinite().all()
    assert allowed
    assert not any(allowed)
    assert torch.backends.cuda.math_sdp_enabled(), "what comes after it is as it was"


def test_what_no_fused_kernel_takes_is_an_error_and_not_gigabytes() -> None:
    complex_ = torch.ones(1, 1, 4, 8, dtype=torch.complex64)
    with fused_attention(), pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(complex_, complex_, complex_)


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
def test_our_attention_and_torchs_encode_a_picture_alike_in_bfloat16(
    variant: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSettings(source=Folder(checkpoint(variant)), dtype=DtypeChoice.BFLOAT16)
    loaded = load_model(settings(checkpoint(variant)).model_copy(update={"model": model}))
    prepared = loaded.frontend._format.prepare_picture(picture(160, 128), PictureBudget(256))
    with torch.inference_mode():
        ours = loaded.model.encode_picture(prepared).embeddings.float()
        monkeypatch.setattr(cpu_attention, "fits_all", lambda q: False)
        torchs = loaded.model.encode_picture(prepared).embeddings.float()
    assert (ours - torchs).norm() <= 0.02 * torchs.norm()


def test_a_mask_is_refused() -> None:
    q = torch.ones(1, 2, 40, 32)
    for mask, options in ((torch.ones(40, 40), {}), (None, {"is_causal": True})):
        with pytest.raises(ValueError, match="all read one another"):
            attend(torch.nn.Identity(), q, q, q, mask, **options)


def test_any_batch_and_few_patches_are_attended_as_torch_does() -> None:
    for shape in ((2, 3, 40, 16), (1, 3, 4, 16)):
        q, k, v = torch.randn(3, *shape).bfloat16().unbind(0)
        answer, _ = attend(torch.nn.Identity(), q, k, v, None, scaling=0.2)
        assert torch.equal(answer, F.scaled_dot_product_attention(q, k, v, scale=0.2).transpose(1, 2))
