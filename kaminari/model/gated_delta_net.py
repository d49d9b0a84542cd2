"""The gated delta rule in three forms that agree, and the short causal convolution in front of it.

A head remembers a matrix S [key_dim, value_dim]. A token decays it, asks it for what its key recalls, and
writes the part of its value that was missing (Yang et al., Gated Delta Networks, 2024):

    S' = exp(g) S;  u = beta (v - k S');  S = S' + k^T u;  output = q S

`token_loop` is that, token by token, and the oracle. `recurrent_step` does one token of many rows at once.
`chunk_rule` does many tokens of one row as small products: within a chunk the corrections u of all tokens
solve one triangular system, and only the state goes from chunk to chunk. All compute in float32, whatever
the model's dtype, and none pads: nothing but a row's own tokens ever reaches its state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
LEAF = 16  # of a triangular matrix: solved outright, larger ones in halves


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What T tokens bring to the rule, float32; queries and keys as `delta_inputs` normalizes them.

    queries, keys:  [T, heads, key_dim]
    values:         [T, heads, value_dim]
    decay:          [T, heads], the logarithm g <= 0
    beta:           [T, heads], from 0 (write nothing) to 1
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decay: Tensor
    beta: Tensor

    def __getitem__(self, tokens: slice | Tensor) -> DeltaInputs:
        return DeltaInputs(
            self.queries[tokens],
            self.keys[tokens],
            self.values[tokens],
            self.decay[tokens],
            self.beta[tokens],
        )

    @property
    def tokens(self) -> int:
        return self.keys.shape[0]


@dataclass(frozen=True, slots=True)
class Corrections:
    """What tokens want to write, before it is written: `write` makes the state after any first few of them.

    keys:   [heads, T, key_dim]
    wrote:  [heads, T, value_dim], the corrections u
    decay:  [heads, T], cumulative from before the first token
    """

    keys: Tensor
    wrote: Tensor
    decay: Tensor

    def write(self, state: Tensor, tokens: int) -> None:
        """Bring a state [heads, key_dim, value_dim] in place to where it is after the first `tokens`."""
        if tokens == 0:
            return
        last = self.decay[:, tokens - 1 : tokens]
        weight = (last - self.decay[:, :tokens]).exp()
        state.mul_(last.exp()[..., None])
        state.baddbmm_((self.keys[:, :tokens] * weight[..., None]).transpose(1, 2), self.wrote[:, :tokens])


def short_convolution(tail: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """silu of the causal depthwise convolution, float32 [rows, T, channels].

    tail:    [rows, kernel - 1, channels], the inputs before these, zeros where there were none
    inputs:  [rows, T, channels]
    weight:  [channels, kernel], the last column for the token itself
    """
    tokens, kernel = inputs.shape[1], weight.shape[1]
    window = torch.cat((tail, inputs), dim=1).float()
    weight = weight.float()
    if tokens > 1 and window.device.type == "cpu":
        # A picture of one line, channels last: oneDNN takes a tenth of the time of the sums below.
        line = window.transpose(1, 2)[:, :, None]
        output = F.conv2d(line, weight[:, None, None], groups=weight.shape[0])[:, :, 0].transpose(1, 2)
    else:
        columns = weight.t().contiguous()
        output = window[:, :tokens] * columns[0]
        for offset in range(1, kernel):
            output.addcmul_(window[:, offset : offset + tokens], columns[offset])
    return F.silu(output, inplace=True)


def next_tail(tail: Tensor, inputs: Tensor) -> Tensor:
    """The last kernel - 1 inputs [rows, kernel - 1, channels] after `inputs` [rows, T, channels]."""
    length = tail.shape[1]
    return torch.cat((tail, inputs[:, -length:]), dim=1)[:, -length:] if length else tail


def delta_inputs(queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, beta: Tensor) -> DeltaInputs:
    """Normalize queries and keys per head, scale the queries, and give each value head its key head.

    queries, keys:  [T, key_heads, key_dim]; values: [T, heads, value_dim], heads a multiple of key_heads
    """
    group = values.shape[1] // keys.shape[1]
    queries = _normalize(queries.float(), queries.shape[-1] ** -0.5)
    keys = _normalize(keys.float(), 1.0)
    if group > 1:
        queries, keys = (each.repeat_interleave(group, dim=1) for each in (queries, keys))
    return DeltaInputs(queries, keys, values.float(), decay.float(), beta.float())


def token_loop(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Run tokens one by one; returns [T, heads, value_dim] and brings `state` up to date in place."""
    outputs = torch.empty_like(inputs.values)
    for token in range(inputs.tokens):
        key = inputs.keys[token].unsqueeze(-1)
        state.mul_(inputs.decay[token].exp()[:, None, None])
        recalled = (state * key).sum(1)
        correction = (inputs.values[token] - recalled) * inputs.beta[token, :, None]
        state.add_(key * correction.unsqueeze(1))
        outputs[token] = (state * inputs.queries[token].unsqueeze(-1)).sum(1)
    return outputs


def recurrent_step(inputs: DeltaInputs, states: Tensor) -> Tensor:
    """One token of each of R rows: inputs of R tokens, states [R, heads, key_dim, value_dim] in place.

    Key and query read the old state in one pass: q S = exp(g) q S_old + (q k) u.
    """
    rows, heads, key_dim = inputs.keys.shape
    flat = states.view(rows * heads, key_dim, -1)
    key = inputs.keys.reshape(-1, 1, key_dim)
    query = inputs.queries.reshape(-1, 1, key_dim)
    decay = inputs.decay.reshape(-1, 1, 1).exp()
    read = torch.bmm(torch.cat((key, query), dim=1), flat) * decay
    value = inputs.values.reshape(rows * heads, 1, -1)
    correction = (value - read[:, :1]) * inputs.beta.reshape(-1, 1, 1)
    flat.mul_(decay)
    flat.baddbmm_(key.transpose(1, 2), correction)
    output = read[:, 1:] + (query * key).sum(-1, keepdim=True) * correction
    return output.view(rows, heads, -1)


def chunk_rule(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Many tokens of one row; returns [T, heads, value_dim] and brings `state` up to date in place.

    state:  [heads, key_dim, value_dim]
    """
    outputs = torch.empty_like(inputs.values)
    for start in range(0, inputs.tokens, CHUNK):
        chunk = inputs[start : start + CHUNK]
        output, corrections = propose(chunk, state)
        outputs[start : start + CHUNK] = output
        corrections.write(state, chunk.tokens)
    return outputs


def propose(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Corrections]:
    """As `chunk_rule`, for a few tokens, but the state stays: what they would write is returned.

    With the keys K, the cumulative decays G and D_ij = exp(G_i - G_j) for j <= i, the corrections U solve
    (1 + beta D (K K^T) below the diagonal) U = beta (V - exp(G) K S).
    """
    queries, keys, values = (each.transpose(0, 1) for each in (inputs.queries, inputs.keys, inputs.values))
    beta = inputs.beta.t()[..., None]
    decay = inputs.decay.t().cumsum(-1)
    grown = decay.exp()[..., None]
    # Above the diagonal the difference is positive and may overflow to what is then set to zero.
    between = (decay[:, :, None] - decay[:, None, :]).exp_().tril_()
    transposed = keys.transpose(1, 2)
    system = torch.bmm(keys, transposed).mul_(between).mul_(beta)
    missing = torch.addcmul(values, torch.bmm(keys, state), grown, value=-1).mul_(beta)
    wrote = torch.bmm(invert_unit_lower(system), missing)
    attention = torch.bmm(queries, transposed).mul_(between)
    output = torch.bmm(queries, state).mul_(grown).baddbmm_(attention, wrote)
    return output.transpose(0, 1), Corrections(keys, wrote, decay)


def invert_unit_lower(system: Tensor) -> Tensor:
    """The inverses of lower triangular [batch, n, n], whose diagonals are taken to be ones.

    What stands on or above the diagonal is not read. By halves, as small products:

        inverse of [[A, 0], [B, C]] = [[A', 0], [-C' B A', C']]

    which is as exact as solving: a series of powers would not be, since they grow before they vanish.
    """
    size = system.shape[-1]
    if size <= LEAF:
        identity = torch.eye(size, dtype=system.dtype, device=system.device)
        leaf: Tensor = torch.linalg.solve_triangular(
            system, identity.expand_as(system), upper=False, unitriangular=True
        )
        return leaf
    half = (size + LEAF) // (2 * LEAF) * LEAF
    inverse = torch.zeros_like(system)
    upper = invert_unit_lower(system[:, :half, :half])
    lower = invert_unit_lower(system[:, half:, half:])
    inverse[:, :half, :half] = upper
    inverse[:, half:, half:] = lower
    inverse[:, half:, :half] = torch.bmm(lower, torch.bmm(system[:, half:, :half], upper)).neg_()
    return inverse


def _normalize(x: Tensor, scale: float) -> Tensor:
    """The reference's `l2norm`, scaled: scale x / sqrt(sum of squares + 1e-6)."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * length.square_().add_(1e-6).rsqrt_().mul_(scale)
