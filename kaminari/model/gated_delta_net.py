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
    tokens = inputs.shape[1]
    window = torch.cat((tail, inputs), dim=1).float()
    columns = weight.float().t()
    output = window[:, :tokens] * columns[0]
    for offset in range(1, columns.shape[0]):
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
    queries, keys = _normalize(queries.float()), _normalize(keys.float())
    queries = queries * queries.shape[-1] ** -0.5
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
    whole = inputs.tokens - inputs.tokens % CHUNK
    outputs = torch.empty_like(inputs.values)
    if whole:
        outputs[:whole] = _run_chunks(_Chunks.of(inputs[:whole], CHUNK), state)
    if rest := inputs.tokens - whole:
        outputs[whole:] = _run_chunks(_Chunks.of(inputs[whole:], rest), state)
    return outputs


def propose(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Corrections]:
    """As `chunk_rule`, for a few tokens, but the state stays: what they would write is returned."""
    chunks = _Chunks.of(inputs, inputs.tokens)
    output, wrote = chunks.read(0, state)
    return output.transpose(0, 1), Corrections(chunks.keys[:, 0], wrote, chunks.decay[:, 0])


@dataclass(frozen=True, slots=True)
class _Chunks:
    """N chunks of C tokens, with all that does not depend on the state.

    keys:        [heads, N, C, key_dim]
    decay:       [heads, N, C], cumulative within the chunk
    queries:     [heads, N, C, key_dim], decayed from the chunk's start
    attention:   [heads, N, C, C], queries on keys of the same chunk, causal and decayed
    values:      [heads, N, C, value_dim], the corrections on an empty state
    recalled:    [heads, N, C, key_dim]; the state's part of the corrections is minus this times the state
    """

    keys: Tensor
    decay: Tensor
    queries: Tensor
    attention: Tensor
    values: Tensor
    recalled: Tensor

    @classmethod
    def of(cls, inputs: DeltaInputs, size: int) -> _Chunks:
        queries, keys, values = (
            each.reshape(-1, size, *each.shape[1:]).permute(2, 0, 1, 3).contiguous()
            for each in (inputs.queries, inputs.keys, inputs.values)
        )
        decay, beta = (
            each.reshape(-1, size, *each.shape[1:]).permute(2, 0, 1).contiguous()
            for each in (inputs.decay, inputs.beta)
        )
        decay = decay.cumsum(-1)
        grown = decay.exp()[..., None]
        # Above the diagonal the difference is positive and may overflow, so it is masked before exp.
        later = torch.ones(size, size, dtype=torch.bool, device=keys.device).triu(1)
        between = (decay[..., :, None] - decay[..., None, :]).masked_fill_(later, -torch.inf).exp_()
        written = keys * beta[..., None]
        transposed = keys.transpose(-1, -2)
        system = (written @ transposed).mul_(between)
        right = torch.cat((values * beta[..., None], written * grown), dim=-1)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        value_dim = values.shape[-1]
        return cls(
            keys=keys,
            decay=decay,
            queries=queries * grown,
            attention=(queries @ transposed).mul_(between),
            values=solved[..., :value_dim],
            recalled=solved[..., value_dim:],
        )

    def read(self, chunk: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and corrections [heads, C, value_dim] of a chunk that starts from `state`."""
        wrote = torch.baddbmm(self.values[:, chunk], self.recalled[:, chunk], state, alpha=-1)
        output = torch.bmm(self.queries[:, chunk], state).baddbmm_(self.attention[:, chunk], wrote)
        return output, wrote


def _run_chunks(chunks: _Chunks, state: Tensor) -> Tensor:
    """[N * C, heads, value_dim]; `state` is brought up to date in place."""
    outputs = []
    for chunk in range(chunks.keys.shape[1]):
        output, wrote = chunks.read(chunk, state)
        outputs.append(output)
        Corrections(chunks.keys[:, chunk], wrote, chunks.decay[:, chunk]).write(state, output.shape[1])
    return torch.cat(outputs, dim=1).transpose(0, 1)


def _normalize(x: Tensor) -> Tensor:
    """The reference's `l2norm`: x / sqrt(sum of squares + 1e-6)."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
