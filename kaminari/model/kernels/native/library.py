"""The C functions of the library with the types of their arguments: the one place that must agree with C++.

Nothing here checks a shape or a pointer: the modules `cpu_*` of `kaminari.model.kernels` do before they call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from kaminari.model.kernels.native.program import Operation

POINTER = ctypes.c_void_p
COUNT = ctypes.c_int64
NUMBER = ctypes.c_float
FLAG = ctypes.c_int32

SIGNATURES: dict[str, tuple[Sequence[type], type | None]] = {
    "kaminari_threads": ((), FLAG),
    # words, how many, where the place of a failed call goes
    "kaminari_run": ((POINTER, COUNT, POINTER), FLAG),
    "kaminari_worker": ((), POINTER),
    "kaminari_worker_end": ((POINTER,), None),
    # worker, words, how many; from, to, bytes of what is given, and of what is found
    "kaminari_worker_start": ((POINTER, POINTER, COUNT, *(POINTER, POINTER, COUNT) * 2), COUNT),
    # worker, number, where its outcome goes
    "kaminari_worker_over": ((POINTER, COUNT, POINTER), FLAG),
    # worker, number, where its outcome goes
    "kaminari_worker_wait": ((POINTER, COUNT, POINTER), None),
    # where the clock's nanoseconds go
    "kaminari_stamp": ((POINTER,), None),
    # table, lines, bytes, index, out, rows
    "kaminari_pick": ((POINTER, COUNT, COUNT, POINTER, POINTER, COUNT), FLAG),
    # from, bytes, to, stride, rows
    "kaminari_place": ((POINTER, COUNT, POINTER, COUNT, COUNT), None),
    # from, to, count
    "kaminari_narrow": ((POINTER, POINTER, COUNT), None),
    # logits, rows, vocabulary, ids, whether bfloat16
    "kaminari_greedy": ((POINTER, COUNT, COUNT, POINTER, FLAG), None),
    # logits, rows, vocabulary, index, lines, orders, draws; made, prompt, penalties; biased ids, biases, how
    # many; ends, how many; ids; whether bfloat16
    "kaminari_choose": (
        (POINTER, COUNT, COUNT, POINTER, COUNT, *(POINTER,) * 7, COUNT, POINTER, COUNT, POINTER, FLAG),
        FLAG,
    ),
    # table, lines, index, ids, rows
    "kaminari_leave": ((POINTER, COUNT, POINTER, POINTER, COUNT), FLAG),
    # logits, rows, vocabulary, temperatures, weights, whether bfloat16
    "kaminari_weigh": ((POINTER, COUNT, COUNT, POINTER, POINTER, FLAG), None),
    # weights, rows, vocabulary, top_k, top_p, the least weight
    "kaminari_keep": ((POINTER, COUNT, COUNT, *(POINTER,) * 3), FLAG),
    # weights, rows, vocabulary, noise, ids
    "kaminari_draw": ((POINTER, COUNT, COUNT, POINTER, POINTER), None),
    # x, y, out, count, whether bfloat16
    "kaminari_add": ((*(POINTER,) * 3, COUNT, FLAG), None),
    # x, gates, strides of tokens and heads, out; tokens, heads, dim; whether bfloat16
    "kaminari_gate": ((POINTER, POINTER, COUNT, COUNT, POINTER, *(COUNT,) * 3, FLAG), None),
    # positions, strides of axes and tokens, axes, tables and their length, cos, sin; tokens, half; as above
    "kaminari_turns": (
        (POINTER, COUNT, COUNT, *(POINTER,) * 3, COUNT, POINTER, POINTER, COUNT, COUNT, FLAG),
        FLAG,
    ),
    # weight, columns, outputs, x, out, rows
    "kaminari_float_linear": ((POINTER, COUNT, COUNT, POINTER, POINTER, COUNT), None),
    # weight, columns, outputs, x, out, rows
    "kaminari_bfloat_linear": ((POINTER, COUNT, COUNT, POINTER, POINTER, COUNT), FLAG),
    # columns, outputs
    "kaminari_int8_bytes": ((COUNT, COUNT), COUNT),
    # codes, columns, first output, how many, panels
    "kaminari_int8_pack": ((POINTER, *(COUNT,) * 3, POINTER), None),
    # panels, scales, columns, outputs, whether bfloat16, x, out, rows
    "kaminari_int8_linear": ((POINTER, POINTER, COUNT, COUNT, FLAG, POINTER, POINTER, COUNT), FLAG),
    # panels, scales, columns, outputs, whether bfloat16, tokens, out, count
    "kaminari_int8_rows": ((POINTER, POINTER, COUNT, COUNT, FLAG, POINTER, POINTER, COUNT), FLAG),
    # group size, columns, outputs
    "kaminari_int4_bytes": ((COUNT, COUNT, COUNT), COUNT),
    # codes, scales, zeros, group size, columns, first output, how many, panels
    "kaminari_int4_pack": ((*(POINTER,) * 3, *(COUNT,) * 4, POINTER), None),
    # panels, group size, columns, outputs, whether bfloat16, x, out, rows
    "kaminari_int4_linear": ((POINTER, COUNT, COUNT, COUNT, FLAG, POINTER, POINTER, COUNT), FLAG),
    # q, k, v, keys, values, out; strides of q, k, v; tokens, heads, kv_heads, slots, capacity, head_dim;
    # slots, q_lens, kv_lens, rows; scale, whether bfloat16
    "kaminari_attend": ((*(POINTER,) * 6, *(COUNT,) * 9, *(POINTER,) * 3, COUNT, NUMBER, FLAG), FLAG),
    # q, keys, values, out; strides of q, and of tokens and heads of keys and of values; tokens, heads,
    # kv_heads, length, head_dim; scale, whether causal, whether bfloat16
    "kaminari_attend_prompt": ((*(POINTER,) * 4, *(COUNT,) * 10, NUMBER, FLAG, FLAG), None),
    # x, its stride, added, summed, weight, out, rows, size, eps, whether centred, whether bfloat16
    "kaminari_rms_norm": ((POINTER, COUNT, *(POINTER,) * 4, COUNT, COUNT, NUMBER, FLAG, FLAG), None),
    # x, strides of tokens and heads, weight, cos, sin, out; tokens, heads, head_dim, turned; as above
    "kaminari_turn": ((POINTER, COUNT, COUNT, *(POINTER,) * 4, *(COUNT,) * 4, NUMBER, FLAG, FLAG), None),
    # gate and up, out, rows, width, whether bfloat16
    "kaminari_swiglu": ((POINTER, POINTER, COUNT, COUNT, FLAG), None),
    # projected, convolution, decay_log, time_bias, norm, state, tail, out, slots; rows, slots, key_heads,
    # heads, key_dim, value_dim, kernel; eps, whether bfloat16
    "kaminari_delta_step": ((*(POINTER,) * 9, *(COUNT,) * 7, NUMBER, FLAG), FLAG),
    # projected, convolution, decay_log, time_bias, norm, state, tail, out; slot, tokens, key_heads, heads,
    # key_dim, value_dim, kernel; eps, whether bfloat16
    "kaminari_delta_prompt": ((*(POINTER,) * 8, *(COUNT,) * 7, NUMBER, FLAG), None),
}

KEEP_GIL = ("kaminari_worker_start", "kaminari_worker_over")
"""Functions that return at once and keep the GIL: to give it away would cost more than they take."""


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions that the library has their types, and return it.

    Those that may be part of a program (`RECORDABLE` in `program.h`) are `Operation`s from then on.
    """
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            continue
        if name in KEEP_GIL:
            setattr(library, name, ctypes.PYFUNCTYPE(result, *arguments)((name, library)))
            continue
        function.argtypes = list(arguments)
        function.restype = result
        again = getattr(library, f"{name}_again", None)
        if again is not None:
            address = ctypes.cast(again, POINTER).value
            assert address is not None
            setattr(library, name, Operation(name, function, address, arguments))
    return library
