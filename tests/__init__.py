"""The tests. Without CUDA, Triton interprets its kernels; it decides when it is first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
