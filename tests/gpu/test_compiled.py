"""The CUDA kernels, compiled by NVIDIA's compiler for GPUs from Volta to Hopper, on any machine."""

from __future__ import annotations

import re

import pytest

from dcr_mpi.kernels.device import source
from tests.gpu.nvrtc import compile_for


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80", "sm_90"])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_compiles_without_a_word_of_complaint(bits: int, architecture: str) -> None:
    text = source(bits)
    code, log = compile_for(text, architecture)
    assert log.strip("\0\n ") == ""
    assert code[:4] == b"\x7fELF"
    kernels = re.findall(r'extern "C" __global__ void (\w+)\(', text)
    assert len(kernels) == text.count("__global__") == 10
    for name in kernels:
        assert f".text.{name}\0".encode() in code, "a kernel of this name is in the machine code"


def test_a_mistake_is_refused() -> None:
    code, log = compile_for(source(16).replace("u64 n = 0;", "u64 n = nothing;"), "sm_80")
    assert code == b"" and "nothing" in log
