"""Verify finds planted faults and names their stage, and finds nothing in a sound model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.qwen3_vl.text import DecoderLayer
from kaminari.verify.comparing import StageDifference
from kaminari.verify.replay import Mode, Replayer
from kaminari.verify.verifying import Report
from tests.model.steps import load
from tests.verify.harness import BOTH, Traced

TraceOf = Callable[[str], Traced]


def exact_gelu(network: Any) -> None:
    network.vision.blocks[1].mlp.act_fn = nn.GELU()


def swapped_residual(network: Any) -> None:
    """The MLP is added to what entered the layer instead of to what attention left."""
    layer = network.text.layers[1]

    def run(part: Callable[..., Any], hidden: Tensor, *others: Tensor) -> Any:
        if part is not DecoderLayer.leave:
            return part(layer, hidden, *others)
        middle = hidden + layer.attention.output(others[0].view(hidden.shape[0], -1))
        return hidden + layer.mlp(layer.mlp_norm(middle))

    layer.run = run


def wrong_epsilon(network: Any) -> None:
    """Shows where activations are small: their variance is what an epsilon is added to."""
    network.text.layers[0].attention_norm.eps = 1e-4


def wrong_tower_epsilon(network: Any) -> None:
    network.vision.blocks[0].norm2.eps = 1e-3


def swapped_norms(network: Any) -> None:
    attention = network.text.layers[2].attention
    attention.q_norm, attention.k_norm = attention.k_norm, attention.q_norm


def reversed_patches(network: Any) -> None:
    """Rows in another order between the patch embedding and the first layer, as a wrong window order."""
    network.vision.patch_embed.register_forward_hook(lambda _, __, output: output.flip(0))


def reversed_merger(network: Any) -> None:
    merger = network.vision.merger
    whole = merger.forward
    merger.forward = lambda hidden: whole(hidden).flip(0)


def zeroed_deepstack_bias(network: Any) -> None:
    network.vision.deepstack_merger_list[1].linear_fc2.bias.data.zero_()


def wrong_final_norm(network: Any) -> None:
    network.text.norm.weight.data.mul_(1.001)


def not_finite(network: Any) -> None:
    network.text.layers[1].mlp.down.weight.data[3, 5] = torch.nan


QWEN3_VL_FAULTS = {
    exact_gelu: ("vision layer 1", "output"),
    swapped_residual: ("text layer 1", "output"),
    wrong_epsilon: ("text layer 0", "output"),
    wrong_tower_epsilon: ("vision layer 0", "output"),
    swapped_norms: ("text layer 2", "output"),
    reversed_patches: ("patch embedding", "output"),
    reversed_merger: ("vision rows", "output"),
    zeroed_deepstack_bias: ("deepstack 1", "output"),
    wrong_final_norm: ("final norm", "output"),
    not_finite: ("text layer 1", "output"),
}


def first(report: Report) -> tuple[str, str]:
    fault = report.first_fault
    assert fault is not None
    return fault.stage.stage, fault.where


SOUND = ["tied-grouped", "untied-wide", "qwen3_5", "qwen3_5-untied", "minicpm_v", "minicpm_v-4x"]


@pytest.mark.parametrize("variant", SOUND)
def test_a_sound_model_passes_in_both_modes(variant: str, trace_of: TraceOf) -> None:
    report = trace_of(variant).held(modes=BOTH)
    assert report.first_fault is None
    assert [(answer.tokens, answer.parted) for answer in report.answers] == [(4, None)] * 3
    assert report.passed
    for mode, noise in ((Mode.ISOLATED, 2e-5), (Mode.THROUGH, 5e-4)):
        stages = report.largest(mode)
        names = [stage.stage for stage in stages]
        assert names[:5] == ["tokens", "positions", "patches", "patch embedding", "vision layer 0"]
        assert names[-2:] == ["final norm", "logits"]
        assert 0 < max(stage.output for stage in stages) < noise


@pytest.mark.parametrize("plant", QWEN3_VL_FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_pinned_to_its_stage(plant: Callable[[Any], None], trace_of: TraceOf) -> None:
    traced = trace_of("tied-grouped")
    model: Any = load(traced.folder)
    plant(model.network)
    report = traced.held(model)
    assert first(report) == QWEN3_VL_FAULTS[plant]
    assert not report.passed
    stage, _ = QWEN3_VL_FAULTS[plant]
    outputs = [each.stage for each in report.largest(Mode.ISOLATED) if not each.output <= each.tolerance]
    assert outputs == [stage], "a fault does not spread to stages that are fed the reference's input"


def test_errors_add_up_through_the_model(trace_of: TraceOf) -> None:
    traced = trace_of("tied-grouped")
    model: Any = load(traced.folder)
    swapped_residual(model.network)
    report = traced.held(model, modes=(Mode.THROUGH,))
    assert first(report) == ("text layer 1", "output")
    faulty = [each.stage for each in report.largest(Mode.THROUGH) if each.fault is not None]
    assert faulty == ["text layer 1", "text layer 2", "final norm", "logits"]
    assert any(answer.parted is not None and not answer.excused for answer in report.answers)


def test_a_fault_of_the_head(trace_of: TraceOf) -> None:
    traced = trace_of("untied-wide")
    model: Any = load(traced.folder)
    model.network.text.own_head.weight.data[7].mul_(1.01)
    assert first(traced.held(model)) == ("logits", "output")


def test_a_fault_between_stages_is_pinned_to_what_enters_the_next(trace_of: TraceOf) -> None:
    """Deepstack features in the wrong order: every module is right, and what joins them is not."""
    traced = trace_of("tied-grouped")
    model: Any = load(traced.folder)
    encode = model.encode_picture
    model.encode_picture = lambda picture: replace(rows := encode(picture), deepstack=rows.deepstack.flip(0))
    assert first(traced.held(model)) == ("text layer 1", "input")


def test_vision_rows_in_the_wrong_places(trace_of: TraceOf) -> None:
    traced = trace_of("tied-grouped")
    model: Any = load(traced.folder)
    encode = model.encode_picture
    model.encode_picture = lambda picture: replace(
        rows := encode(picture), embeddings=rows.embeddings.flip(0)
    )
    assert first(traced.held(model)) == ("text layer 0", "input")


def reversed_convolution(network: Any) -> None:
    weight = network.text.layers[1].mixer.convolution
    weight.data.copy_(weight.data.flip(-1))


def wrong_decay(network: Any) -> None:
    network.text.layers[2].mixer.time_bias.data.add_(0.01)


def missing_gate(network: Any) -> None:
    """The output gate of the attention layer at 1/2 throughout: a sigmoid of 0."""
    attention = network.text.layers[3].mixer
    whole = attention.qkv.forward

    def forward(x: Tensor) -> Tensor:
        heads = whole(x).unflatten(-1, (-1, attention.head_dim)).clone()
        heads[:, 1 : 2 * attention.heads : 2] = 0
        return heads.flatten(-2)

    attention.qkv.forward = forward


@pytest.mark.parametrize(
    ("plant", "stage"),
    [(reversed_convolution, "text layer 1"), (wrong_decay, "text layer 2"), (missing_gate, "text layer 3")],
)
def test_faults_of_the_hybrid_decoder(plant: Callable[[Any], None], stage: str, trace_of: TraceOf) -> None:
    traced = trace_of("qwen3_5")
    model: Any = load(traced.folder)
    plant(model.network)
    assert first(traced.held(model)) == (stage, "output")


def flipped_windows(network: Any) -> None:
    """The patches of each window in another order."""
    merger = network.vision.tower.vit_merger
    whole = merger.get_window_index

    def get_window_index(*args: Any, **kwargs: Any) -> Any:
        index, *rest = whole(*args, **kwargs)
        return index.view(-1, 4).flip(1).flatten(), *rest

    merger.get_window_index = get_window_index


def exact_gelu_in_the_window_merger(network: Any) -> None:
    network.vision.tower.vit_merger.act = nn.GELU()


def window_residual_of_the_first_patch(network: Any) -> None:
    """The residual of a window is its first patch and not the mean."""
    merger = network.vision.tower.vit_merger
    whole = merger.linear_2.forward
    windows: list[Tensor] = []
    merger.pre_norm.register_forward_pre_hook(lambda _, args: windows.append(args[0].unflatten(-1, (4, -1))))

    def forward(hidden: Tensor) -> Tensor:
        patches = windows.pop()
        return whole(hidden) + patches[:, 0] - patches.mean(dim=1)

    merger.linear_2.forward = forward


def tanh_gelu_in_the_last_merger(network: Any) -> None:
    network.vision.merger.mlp[0].act = nn.GELU(approximate="tanh")


@pytest.mark.parametrize(
    ("plant", "stage"),
    [
        (flipped_windows, "window merger"),
        (exact_gelu_in_the_window_merger, "window merger"),
        (window_residual_of_the_first_patch, "window merger"),
        (tanh_gelu_in_the_last_merger, "vision rows"),
    ],
)
def test_faults_of_the_sliced_tower(plant: Callable[[Any], None], stage: str, trace_of: TraceOf) -> None:
    traced = trace_of("minicpm_v")
    model: Any = load(traced.folder)
    plant(model.network)
    assert first(traced.held(model)) == (stage, "output")


def test_without_the_window_merger_there_is_no_such_stage(trace_of: TraceOf) -> None:
    for variant, present in (("minicpm_v", True), ("minicpm_v-4x", False)):
        _, two, _ = trace_of(variant).trace.prompts
        assert ("window merger" in two.stages) is present


def altered(change: Callable[[PreparedPrompt], PreparedPrompt], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Replayer.prepare
    monkeypatch.setattr(Replayer, "prepare", lambda self, prompt: change(whole(self, prompt)))


def test_wrong_positions_are_a_fault_of_the_prompt_side_alone(
    trace_of: TraceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(lambda prompt: replace(prompt, positions=prompt.positions + 1), monkeypatch)
    report = trace_of("tied-grouped").held()
    assert first(report) == ("positions", "output")
    assert [each.stage for each in report.largest(Mode.ISOLATED) if each.fault] == ["positions"]


def test_wrong_pixels_are_a_fault_of_the_prompt_side_alone(
    trace_of: TraceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def darken(prompt: PreparedPrompt) -> PreparedPrompt:
        pictures = tuple(replace(each, pixels=each.pixels * 0.99) for each in prompt.pictures)
        return replace(prompt, pictures=pictures)

    altered(darken, monkeypatch)
    report = trace_of("tied-grouped").held()
    assert first(report) == ("patches", "output")
    assert [each.stage for each in report.largest(Mode.ISOLATED) if each.fault] == ["patches"]


def test_other_tokens_end_a_prompt_before_the_model_runs(
    trace_of: TraceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(lambda prompt: replace(prompt, token_ids=(*prompt.token_ids[:-1], 0)), monkeypatch)
    report = trace_of("tied-grouped").held()
    assert first(report) == ("tokens", "output")
    assert report.answers == ()
    assert {stage.stage for stage in report.largest(Mode.ISOLATED)} == {"tokens"}


def test_a_stage_that_one_side_lacks_is_a_fault(trace_of: TraceOf) -> None:
    traced = trace_of("tied-grouped")
    model: Any = load(traced.folder)
    model.network.vision.deepstack_visual_indexes = [0]
    report = traced.held(model)
    missing = next(each for each in report.largest(Mode.ISOLATED) if each.stage == "deepstack 1")
    assert missing == StageDifference("deepstack 1", float("inf"), float("inf"), 1e-4)
