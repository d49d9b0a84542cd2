"""A trace comes back from its file as it was, and what is no trace is refused with one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kaminari.verify.trace import Trace, TraceError, checkpoint_digest, load_trace, save_trace
from tests.verify.harness import Traced

TraceOf = Callable[[str], Traced]


def assert_same(one: Trace, other: Trace) -> None:
    assert (one.checkpoint, one.dtype, one.made_with) == (other.checkpoint, other.dtype, other.made_with)
    for mine, theirs in zip(one.prompts, other.prompts, strict=True):
        assert mine.prompt == theirs.prompt
        assert mine.greedy == theirs.greedy
        assert list(mine.stages) == list(theirs.stages)
        for name, record in mine.stages.items():
            assert torch.equal(record.entering, theirs.stages[name].entering)
            assert torch.equal(record.output, theirs.stages[name].output)
        assert torch.equal(mine.token_ids, theirs.token_ids)
        assert torch.equal(mine.positions, theirs.positions)
        assert (mine.patches is None) == (theirs.patches is None)
        if mine.patches is not None and theirs.patches is not None:
            assert torch.equal(mine.patches, theirs.patches)


def test_a_trace_survives_its_file_and_serves_as_well(trace_of: TraceOf, tmp_path: Path) -> None:
    traced = trace_of("tied-grouped")
    path = tmp_path / "trace.safetensors"
    save_trace(traced.trace, path)
    again = load_trace(path)
    assert_same(traced.trace, again)
    assert Traced(traced.folder, again).held().passed


def test_what_is_in_a_trace(trace_of: TraceOf) -> None:
    text, two, _ = trace_of("tied-grouped").trace.prompts
    assert text.patches is None
    assert not [name for name in text.stages if name.startswith("vision")]
    assert two.patches is not None
    assert two.stages["vision layer 0"].entering.shape[0] == two.patches.shape[0]
    assert two.stages["vision rows"].output.shape[0] == two.patches.shape[0] // 4
    assert two.stages["text layer 0"].output.shape[0] == len(two.token_ids)
    assert two.stages["logits"].output.shape[0] == 16
    assert two.positions.shape == (3, len(two.token_ids))
    assert len(two.greedy.token_ids) == len(two.greedy.gaps) == 4


def test_files_that_are_no_trace(trace_of: TraceOf, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    with pytest.raises(TraceError, match="cannot read the trace"):
        load_trace(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(TraceError, match="cannot read the trace"):
        load_trace(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(TraceError, match="no trace of this version"):
        load_trace(path)
    save_file({"a": torch.zeros(1)}, path, {"format": "kaminari-trace-1", "about": "{}"})
    with pytest.raises(TraceError, match="cannot read the trace"):
        load_trace(path)


def test_a_trace_that_lacks_a_tensor(trace_of: TraceOf, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    save_trace(trace_of("tied-grouped").trace, path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    del tensors["1/output/vision layer 1"]
    save_file(tensors, path, metadata)
    with pytest.raises(TraceError, match="vision layer 1"):
        load_trace(path)


def test_a_digest_names_the_config_and_not_its_layout(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"a": 1, "b": 2}', encoding="utf-8")
    digest = checkpoint_digest(tmp_path)
    config.write_text('{"b": 2,\n "a": 1}', encoding="utf-8")
    assert checkpoint_digest(tmp_path) == digest
    config.write_text('{"a": 1, "b": 3}', encoding="utf-8")
    assert checkpoint_digest(tmp_path) != digest
