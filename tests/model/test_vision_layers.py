"""Vision attention never takes the plain form, whose scores would fill the memory for a large picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.engine.loading import load_model
from kaminari.model.family import PictureBudget
from kaminari.model.fused_attention import fused_attention
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
