"""A step has the shape that compiled and captured steps need: it never asks the device for a value."""

from __future__ import annotations

from pathlib import Path

import torch

from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.cache import AttentionKV, SlotCache
from kaminari.model.qwen3_vl.config import load_config
from kaminari.model.qwen3_vl.weights import Network


def test_a_step_runs_where_no_tensor_has_a_value(tiny_checkpoint: Path) -> None:
    """On the meta device a read of any value, and any shape that depends on one, raises."""
    config = load_config(tiny_checkpoint)
    sizes = config.text
    meta = torch.device("meta")
    text = Network(config).text.to(meta)
    states = [
        AttentionKV(4, sizes.kv_heads, 64, sizes.head_dim, device=meta, dtype=torch.float32)
        for _ in range(sizes.layers)
    ]
    batch = StepBatch(
        tokens=torch.empty(9, dtype=torch.int64, device=meta),
        positions=torch.empty(3, 9, dtype=torch.int64, device=meta),
        slots=torch.empty(3, dtype=torch.int64, device=meta),
        q_lens=torch.empty(3, dtype=torch.int32, device=meta),
        kv_lens=torch.empty(3, dtype=torch.int32, device=meta),
        logit_rows=torch.empty(3, dtype=torch.int64, device=meta),
        host=RowLengths((2, 0, 3), (7, 1, 1), (20, 33, 1)),
        features=FeatureRows(
            torch.empty(4, dtype=torch.int64, device=meta),
            torch.empty(4, sizes.hidden, device=meta),
            torch.empty(2, 4, sizes.hidden, device=meta),
        ),
    )
    hidden = text(batch, SlotCache(states, 4, 64))
    assert hidden.shape == (9, sizes.hidden)
    assert text.head(hidden.index_select(0, batch.logit_rows)).shape == (3, sizes.vocab)
