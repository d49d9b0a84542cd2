"""Triton's kernels for tests that run them, on CUDA or in its interpreter."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from packaging.version import Version


def triton_kernels(name: str) -> ModuleType:
    """A module of `kaminari.model.kernels`; skips the calling module where its kernels cannot run."""
    triton = pytest.importorskip("triton")
    # it makes scalars of arrays with one dimension, which numpy has forbidden
    broken = Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4")
    if broken and not torch.cuda.is_available():
        reason = f"Triton {triton.__version__}'s interpreter does not run with numpy {np.__version__}"
        pytest.skip(reason, allow_module_level=True)
    module: ModuleType = pytest.importorskip(f"kaminari.model.kernels.{name}")
    return module
