"""A gated-delta-net layer: projections, short convolution, the recurrence over slots, gated norm.

On a CPU where our own kernels are built, what lies between the projections goes to
`kaminari.model.kernels.cpu_delta`; drafts, and every other device, run in torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kaminari.model.batch import StepBatch
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.gated_delta_net import DeltaInputs, delta_inputs, short_convolution
from kaminari.model.hybrid.config import HybridSizes
from kaminari.model.kernels import cpu_delta
from kaminari.model.kernels.cpu_delta import DeltaWeights
from kaminari.model.layers import normalize
from kaminari.model.linear import Linear


class GatedDeltaNet(nn.Module):
    """Linear attention of one layer. `input` holds the rows of q, k, v, then the output gate, beta, decay.

    convolution:  [channels, kernel], over q, k and v
    decay_log:    [heads], and time_bias [heads]: decay = -exp(decay_log) softplus(input + time_bias)
    norm:         [value_dim]
    """

    def __init__(self, sizes: HybridSizes) -> None:
        super().__init__()
        self.sizes = sizes.delta
        self.norm_eps = sizes.norm_eps
        values = self.sizes.heads * self.sizes.value_dim
        self.parts = [self.sizes.channels, values, self.sizes.heads, self.sizes.heads]
        self.input = Linear(sizes.hidden, sum(self.parts))
        self.convolution = _unset(self.sizes.channels, self.sizes.kernel)
        self.decay_log = _unset(self.sizes.heads)
        self.time_bias = _unset(self.sizes.heads)
        self.norm = _unset(self.sizes.value_dim)
        self.output = Linear(values, sizes.hidden)

    def recur(self, projected: Tensor, state: GatedDeltaState, batch: StepBatch) -> Tensor:
        """What lies between the projections: [T, rows of `input`] -> [T, heads * value_dim]."""
        if state.drafts(batch.host) or not cpu_delta.fits(projected, state.state, self.sizes.kernel):
            return self.mix(projected, state, batch)
        if max(batch.host.q_lens) > 1:
            return self._mix_natively(projected, state, batch)
        mixed = cpu_delta.step(projected, self.weights, state.state, state.tail, batch.slots)
        state.advance(batch.host.slots)
        return mixed

    @property
    def weights(self) -> DeltaWeights:
        return DeltaWeights(self.convolution, self.decay_log, self.time_bias, self.norm, self.norm_eps)

    def mix(self, projected: Tensor, state: GatedDeltaState, batch: StepBatch) -> Tensor:
        """`recur` in torch's own operators."""
        mixed, gate, beta, decay = torch.split(projected, self.parts, dim=-1)
        beta = beta.float().sigmoid()
        decay = -self.decay_log.float().exp() * F.softplus(decay.float() + self.time_bias.float())
        heads = self._run(mixed, decay, beta, state, batch)
        return self._gated_norm(heads.to(projected.dtype), gate.view(heads.shape)).flatten(1)

    def _mix_natively(self, projected: Tensor, state: GatedDeltaState, batch: StepBatch) -> Tensor:
        """`mix`, in kernels of our own: rows of one token take that of decode steps, as they do alone."""
        rows = batch.host
        outputs = []
        start = 0
        for place, (slot, length) in enumerate(zip(rows.slots, rows.q_lens, strict=True)):
            part = projected[start : start + length]
            if length == 1:
                index = batch.slots[place : place + 1]
                output = cpu_delta.step(part, self.weights, state.state, state.tail, index)
            else:
                output = cpu_delta.prompt(part, self.weights, state.state, state.tail, slot)
            outputs.append(output)
            state.advance((slot,), length)
            start += length
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _run(
        self, mixed: Tensor, decay: Tensor, beta: Tensor, state: GatedDeltaState, batch: StepBatch
    ) -> Tensor:
        """Convolution and recurrence of each row on its own slot: float32 [T, heads, value_dim]."""
        rows = batch.host
        if state.all_single(rows):
            inputs = mixed[:, None]
            tail = state.tail.index_select(0, batch.slots)
            convolved = short_convolution(tail, inputs, self.convolution)[:, 0]
            return state.run_single_tokens(
                rows.slots, batch.slots, self._delta_inputs(convolved, decay, beta), inputs
            )
        outputs = []
        start = 0
        for slot, length in zip(rows.slots, rows.q_lens, strict=True):
            row = slice(start, start + length)
            inputs = mixed[None, row]
            convolved = short_convolution(state.tail[slot : slot + 1], inputs, self.convolution)[0]
            outputs.append(state.run_row(slot, self._delta_inputs(convolved, decay[row], beta[row]), inputs))
            start += length
        return torch.cat(outputs)

    def _delta_inputs(self, convolved: Tensor, decay: Tensor, beta: Tensor) -> DeltaInputs:
        keys = self.sizes.key_heads * self.sizes.key_dim
        q, k, v = torch.split(convolved, [keys, keys, self.sizes.heads * self.sizes.value_dim], dim=-1)
        tokens = convolved.shape[0]
        return delta_inputs(
            q.reshape(tokens, self.sizes.key_heads, self.sizes.key_dim),
            k.reshape(tokens, self.sizes.key_heads, self.sizes.key_dim),
            v.reshape(tokens, self.sizes.heads, self.sizes.value_dim),
            decay,
            beta,
        )

    def _gated_norm(self, heads: Tensor, gate: Tensor) -> Tensor:
        """RMSNorm of [T, heads, value_dim], times silu of the gate in float32: the reference's order."""
        normed = normalize(heads, self.norm_eps).to(heads.dtype)
        return (F.silu(gate.float()) * (self.norm * normed)).to(heads.dtype)


def _unset(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
