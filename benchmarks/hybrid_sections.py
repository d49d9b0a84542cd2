"""The sections of `benchmarks.hybrid`: each measures both sides in turns, and prints and returns figures."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from benchmarks.clock import now
from benchmarks.components import OURS, THEIRS, timed
from benchmarks.sides import Ours, Theirs
from kaminari.model.family import PictureBudget, find_family
from kaminari.model.gated_delta_net import CHUNK, chunk_rule, delta_inputs, recurrent_step
from kaminari.model.hybrid.config import HybridSizes
from kaminari.model.hybrid.delta_net import GatedDeltaNet
from kaminari.model.kernels import cpu_delta
from kaminari.model.picture import Picture

Results = dict[str, Any]
SCAN_TOKENS, SCAN_ROUNDS = 1024, 5
DECODE_PROMPT, DECODE_STEPS = 512, 24
PICTURE_SIDE, PICTURE_ROUNDS = 448, 5


def measure_prefill(
    ours: Ours, theirs: Theirs, tiers: Sequence[int], rounds: int, as_shipped: bool, console: Console
) -> Results:
    """Tokens per second of each tier, in turns.

    rounds:      of the shortest tier; the others run once. What a machine gives drifts within minutes, so the
                 shortest tier has half of its rounds before the others and half behind them
    as_shipped:  the shortest tier with the reference's logits of every token besides
    """
    sizes: HybridSizes = ours.model._sizes
    rate = product_rate(sizes, ours.model.dtype)
    shortest = min(tiers)
    sides: dict[int, list[Callable[[], Any]]] = {
        tokens: [partial(side.prefill, random_prompt(tokens)) for side in (ours, theirs)]
        for tokens in sorted(tiers)
    }
    if as_shipped:
        sides[shortest].append(partial(theirs.prefill, random_prompt(shortest), every_logit=True))
    order = [*[shortest] * ((rounds + 1) // 2), *list(sides)[1:], *[shortest] * (rounds // 2)]
    taken: dict[int, list[list[float]]] = {tokens: [[] for _ in each] for tokens, each in sides.items()}
    for tokens in order:
        with console.status(f"prefill of {tokens}"):
            for side, seconds in zip(taken[tokens], in_turns(sides[tokens], 1), strict=True):
                side.append(seconds)
        gc.collect()
        console.print(f"{tokens} tokens:", ", ".join(f"{each[-1]:.1f} s" for each in taken[tokens]))
    figures: Results = {}
    title = "Prefill, tokens/s"
    table = Table("tokens", "kaminari", "transformers", "ratio", "as shipped", "of its FLOPs", title=title)
    for tokens, seconds_of_sides in taken.items():
        speeds = [tokens / statistics.median(each) for each in seconds_of_sides]
        predicted = tokens / (prefill_flops(sizes, tokens) / rate)
        figures[str(tokens)] = {
            "kaminari": speeds[0],
            "transformers": speeds[1],
            "ratio": speeds[0] / speeds[1],
            "predicted": predicted,
            **({"as_shipped": speeds[2]} if len(speeds) > 2 else {}),
            "seconds": seconds_of_sides,
        }
        table.add_row(
            str(tokens),
            f"{speeds[0]:.0f}",
            f"{speeds[1]:.0f}",
            f"{speeds[0] / speeds[1]:.2f}x",
            f"{speeds[2]:.0f} ({speeds[0] / speeds[2]:.2f}x)" if len(speeds) > 2 else "",
            f"{speeds[0] / predicted:.0%} of {predicted:.0f}",
        )
    share = figures[str(max(tiers))]["kaminari"] / figures[str(shortest)]["kaminari"]
    console.print(table, f"longest against shortest: {share:.2f}; products: {rate / 1e9:.0f} GFLOP/s")
    return {"tiers": figures, "longest_against_shortest": share, "product_flops": rate}


def measure_components(ours: Ours, theirs: Theirs, tokens: int, folder: Path, console: Console) -> Results:
    """Seconds of each part of a picture's encoding and one prefill, and of the rest."""
    ids, picture = random_prompt(tokens), square_picture(folder)
    title = f"Parts of a picture of {PICTURE_SIDE} x {PICTURE_SIDE} and a prefill of {tokens}"
    table = Table("part", "kaminari s", "share", "transformers s", "share", title=title)
    parts: Results = {}
    for name, side, owners in (("kaminari", ours, OURS), ("transformers", theirs, THEIRS)):
        with console.status(f"parts of {name}"), timed(owners) as seconds:
            start = now()
            side.encode(picture)
            side.prefill(ids)
            whole = now() - start
        parts[name] = {**seconds, "rest": whole - sum(seconds.values()), "whole": whole}
    for part in parts["kaminari"]:
        cells = [(parts[name][part], parts[name]["whole"]) for name in parts]
        table.add_row(part, *(cell for one, whole in cells for cell in (f"{one:.2f}", f"{one / whole:.0%}")))
    console.print(table)
    return {"tokens": tokens, **parts}


def measure_scan(ours: Ours, console: Console) -> Results:
    """One layer's recurrence over the same tokens: chunked, token by token, and the reference's forms.

    Our own kernels, where they run, take the convolution in front and the gated norm behind along.
    """
    delta = ours.model._sizes.delta
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(SCAN_TOKENS, *shape, generator=generator)

    queries, keys = noise(delta.key_heads, delta.key_dim), noise(delta.key_heads, delta.key_dim)
    values, decay = noise(delta.heads, delta.value_dim), -0.1 * noise(delta.heads).abs()
    beta = noise(delta.heads).sigmoid()

    def state() -> torch.Tensor:
        return torch.zeros(delta.heads, delta.key_dim, delta.value_dim)

    def one_token_at_a_time() -> None:
        inputs, states = delta_inputs(queries, keys, values, decay, beta), state()[None]
        for token in range(SCAN_TOKENS):
            recurrent_step(inputs[token : token + 1], states)

    layer: GatedDeltaNet = next(
        each.mixer for each in ours.model.network.text.layers if isinstance(each.mixer, GatedDeltaNet)
    )
    projected = noise(layer.input.out_features).to(ours.model.dtype)
    memory = state()[None], projected.new_zeros(1, delta.kernel - 1, delta.channels)
    native: dict[str, Callable[[], Any]] = {}
    if cpu_delta.fits(projected, memory[0], delta.kernel):

        def natively_one_token_at_a_time() -> None:
            slots = torch.tensor([0])
            for token in projected.split(1):
                cpu_delta.step(token, layer.weights, *memory, slots)

        native["chunked, native"] = lambda: cpu_delta.prompt(projected, layer.weights, *memory, 0)
        native["one token at a time, native"] = natively_one_token_at_a_time

    def theirs(form: Callable[..., Any]) -> Callable[[], Any]:
        batch = [each[None] for each in (queries, keys, values)]
        options = {"g": decay[None], "beta": beta[None], "output_final_state": True}
        return lambda: form(*batch, use_qk_l2norm_in_kernel=True, **options)

    forms: dict[str, Callable[[], Any]] = {
        **native,
        "chunked": lambda: chunk_rule(delta_inputs(queries, keys, values, decay, beta), state()),
        "one token at a time": one_token_at_a_time,
        "transformers, chunked": theirs(torch_chunk_gated_delta_rule),
        "transformers, one token at a time": theirs(torch_recurrent_gated_delta_rule),
    }
    with console.status("scan"):
        seconds = dict(zip(forms, in_turns(list(forms.values()), SCAN_ROUNDS), strict=True))
    table = Table(
        "form", "ms", "the first is faster by", title=f"Scan of {SCAN_TOKENS} tokens, one layer, float32"
    )
    for form, one in seconds.items():
        table.add_row(form, f"{one * 1e3:.1f}", f"{one / next(iter(seconds.values())):.2f}x")
    console.print(table)
    return {"tokens": SCAN_TOKENS, "seconds": seconds}


def measure_decode(ours: Ours, theirs: Theirs, console: Console) -> Results:
    """Milliseconds per token at batch 1 behind a prompt, the sides taking turns token by token."""
    tokens = [ours.prefill(random_prompt(DECODE_PROMPT)), theirs.prefill(random_prompt(DECODE_PROMPT))]

    def step(side: Ours | Theirs, place: int) -> Callable[[], None]:
        def run() -> None:
            tokens[place] = side.decode(tokens[place])

        return run

    with console.status("decode"):
        seconds = in_turns([step(ours, 0), step(theirs, 1)], DECODE_STEPS)
    weights = sum(each.numel() * each.element_size() for each in ours.model.network.text.parameters())
    table = Table(
        "", "kaminari", "transformers", "ratio", title=f"Decode at batch 1 behind {DECODE_PROMPT} tokens"
    )
    table.add_row("ms per token", *(f"{one * 1e3:.0f}" for one in seconds), f"{seconds[1] / seconds[0]:.2f}x")
    table.add_row("GB/s of weights", *(f"{weights / one / 1e9:.1f}" for one in seconds), "")
    console.print(table)
    return {
        "kaminari_ms": seconds[0] * 1e3,
        "transformers_ms": seconds[1] * 1e3,
        "ratio": seconds[1] / seconds[0],
        "weight_bytes": weights,
    }


def measure_picture(ours: Ours, theirs: Theirs, folder: Path, console: Console) -> Results:
    """Milliseconds of the vision half for one square picture."""
    picture = square_picture(folder)
    mine, golden = ours.encode(picture).float(), theirs.encode(picture).float()
    difference = ((mine - golden).norm() / golden.norm()).item()
    with console.status("picture"):
        seconds = in_turns([lambda: ours.encode(picture), lambda: theirs.encode(picture)], PICTURE_ROUNDS)
    table = Table(
        "", "kaminari", "transformers", "ratio", title=f"A picture of {PICTURE_SIDE} x {PICTURE_SIDE}"
    )
    table.add_row("ms", *(f"{one * 1e3:.0f}" for one in seconds), f"{seconds[1] / seconds[0]:.2f}x")
    console.print(table, f"rows differ by {difference:.1e} of their size")
    return {
        "tokens": picture.tokens,
        "kaminari_ms": seconds[0] * 1e3,
        "transformers_ms": seconds[1] * 1e3,
        "ratio": seconds[1] / seconds[0],
    }


def in_turns(sides: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each side, after the sides took turns for so many rounds."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for place, side in enumerate(sides):
            start = now()
            side()
            seconds[place].append(now() - start)
    return [statistics.median(each) for each in seconds]


def prefill_flops(sizes: HybridSizes, tokens: int) -> float:
    """Multiplications and additions of a prompt: projections, causal attention, chunked scan, last logits."""
    delta, hidden = sizes.delta, sizes.hidden
    values = delta.heads * delta.value_dim
    attention = hidden * sizes.head_dim * (3 * sizes.heads + 2 * sizes.kv_heads)
    mixing = hidden * (delta.channels + 2 * delta.heads + 2 * values)
    mlp = 3 * hidden * sizes.intermediate
    layers = [attention + mlp if attends else mixing + mlp for attends in sizes.attends]
    attended = sum(sizes.attends) * 4 * sizes.heads * sizes.head_dim * tokens * (tokens + 1) / 2
    per_token = 2 * CHUNK * (2 * delta.key_dim + 2 * delta.value_dim) + 6 * delta.key_dim * delta.value_dim
    scanned = (len(layers) - sum(sizes.attends)) * delta.heads * per_token * tokens
    return 2.0 * sum(layers) * tokens + attended + scanned + 2 * hidden * sizes.vocab


def product_rate(sizes: HybridSizes, dtype: torch.dtype) -> float:
    """FLOP/s of the decoder's widest projection over a chunk, the best of five."""
    x = torch.randn(512, sizes.hidden).to(dtype)
    weight = torch.randn(2 * sizes.intermediate, sizes.hidden).to(dtype)
    best = min(in_turns([lambda: F.linear(x, weight)], 1)[0] for _ in range(5))
    return 2 * x.numel() * weight.shape[0] / best


def square_picture(folder: Path) -> Picture:
    """Noise of the size that one slice has."""
    pixels = np.random.default_rng(0).integers(0, 256, (PICTURE_SIDE, PICTURE_SIDE, 3), dtype=np.uint8)
    prompt_format = find_family(folder).prompt_format(folder)
    return prompt_format.prepare_picture(Image.fromarray(pixels), PictureBudget(1 << 20))


def random_prompt(tokens: int) -> torch.Tensor:
    return torch.randint(300, 100_000, (tokens,), generator=torch.Generator().manual_seed(tokens))
