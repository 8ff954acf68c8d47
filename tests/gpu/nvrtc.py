"""NVIDIA's run-time compiler, from the wheel that the development requirements bring; it needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from functools import lru_cache
from pathlib import Path

import pytest

_PLACES = ("cuda_nvrtc/lib", "cu13/lib")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiler, or None where no wheel of it is installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in _PLACES:
            for file in sorted((Path(folder) / place).glob("libnvrtc.so.*")):
                return ctypes.CDLL(str(file))
    return None


def compile_for(text: str, architecture: str) -> tuple[bytes, str]:
    """The machine code (a cubin) and the log; empty code where the compiler refuses."""
    nvrtc = library()
    if nvrtc is None:
        pytest.skip("NO NVRTC (nvidia-cuda-nvrtc-cu12): the CUDA kernels are not compiled by NVIDIA's compiler here")
    program = c_void_p()
    nvrtc.nvrtcCreateProgram.argtypes = [POINTER(c_void_p), c_char_p, c_char_p, c_int, c_void_p, c_void_p]
    assert nvrtc.nvrtcCreateProgram(byref(program), text.encode(), b"words.cu", 0, None, None) == 0
    options = [b"--std=c++14", f"--gpu-architecture={architecture}".encode()]
    refused = nvrtc.nvrtcCompileProgram(program, len(options), (c_char_p * len(options))(*options))
    log, size = create_string_buffer(_size(nvrtc.nvrtcGetProgramLogSize, program)), 0
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    code = create_string_buffer(b"")
    if not refused:
        size = _size(nvrtc.nvrtcGetCUBINSize, program)
        code = create_string_buffer(size)
        assert nvrtc.nvrtcGetCUBIN(program, code) == 0
    assert nvrtc.nvrtcDestroyProgram(byref(program)) == 0
    return code.raw[:size], log.value.decode()


def _size(call: ctypes._NamedFuncPointer, program: c_void_p) -> int:
    size = c_size_t()
    assert call(program, byref(size)) == 0
    return size.value
