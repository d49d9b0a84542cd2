"""The C functions of the library with the types of their arguments: the one place that must agree with C++.

Nothing here checks a shape or a pointer: `cpu_linear` does, before it calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

POINTER = ctypes.c_void_p
COUNT = ctypes.c_int64
FLAG = ctypes.c_int32

SIGNATURES: dict[str, tuple[Sequence[type], type | None]] = {
    "kaminari_threads": ((), FLAG),
    # weight, columns, outputs, x, out, rows
    "kaminari_bfloat_linear": ((POINTER, COUNT, COUNT, POINTER, POINTER, COUNT), None),
    # columns, outputs
    "kaminari_int8_bytes": ((COUNT, COUNT), COUNT),
    # codes, columns, outputs, panels
    "kaminari_int8_pack": ((POINTER, COUNT, COUNT, POINTER), None),
    # panels, scales, columns, outputs, whether bfloat16, x, out, rows
    "kaminari_int8_linear": ((POINTER, POINTER, COUNT, COUNT, FLAG, POINTER, POINTER, COUNT), FLAG),
    # group size, columns, outputs
    "kaminari_int4_bytes": ((COUNT, COUNT, COUNT), COUNT),
    # codes, scales, zeros, group size, columns, outputs, panels
    "kaminari_int4_pack": ((POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, POINTER), None),
    # panels, group size, columns, outputs, whether bfloat16, x, out, rows
    "kaminari_int4_linear": ((POINTER, COUNT, COUNT, COUNT, FLAG, POINTER, POINTER, COUNT), FLAG),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions that the library has their types, and return it."""
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = list(arguments)
            function.restype = result
    return library
