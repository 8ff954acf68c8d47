"""The door to cupy, and the choice of a room. Where there is no GPU, a stand-in for cupy runs kernels on the CPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dcr_mpi.errors import ResourceError, UsageError
from dcr_mpi.kernels import cuda, get_kernels
from dcr_mpi.kernels.cuda import CupyDevice, open_device
from dcr_mpi.kernels.device import DeviceFull, DeviceKernels
from tests.gpu.rooms import CHECKS, every_way
from tests.gpu.shim import Memory, ShimDevice, needs_compiler


class _CudaError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class _NoMemory(Exception):
    pass


class StandIn:
    """What the door takes from cupy. Arrays are numpy's, and launches go to the shim."""

    def __init__(self, devices: int = 1) -> None:
        self.freed = 0
        self.entered: list[int] = []
        self.broken: Exception | None = None
        runtime = SimpleNamespace(
            CUDARuntimeError=_CudaError,
            getDeviceCount=lambda: devices,
            getDeviceProperties=lambda number: {"name": f"GPU {number}".encode()},
        )
        driver, memory = SimpleNamespace(CUDADriverError=_CudaError), SimpleNamespace(OutOfMemoryError=_NoMemory)
        self.cuda = SimpleNamespace(runtime=runtime, driver=driver, memory=memory, Device=self._device)
        self.asnumpy = np.copy

    def _device(self, number: int) -> Any:
        self.entered.append(number)
        return nullcontext()

    def asarray(self, array: np.ndarray) -> np.ndarray:
        if self.broken is not None:
            raise self.broken
        assert array.dtype.kind == "u" and array.flags.c_contiguous
        return array.copy()

    def empty(self, size: int, kind: str) -> np.ndarray:
        return np.full(size, 0xCD, kind)

    def cumsum(self, array: np.ndarray, dtype: type) -> np.ndarray:
        assert array.size and array.dtype == dtype
        return np.cumsum(array, dtype=dtype)

    def get_default_memory_pool(self) -> Any:
        def free() -> None:
            self.freed += 1

        return SimpleNamespace(free_all_blocks=free)

    def RawModule(self, code: str, options: tuple[str, ...], backend: str) -> Any:
        assert options == ("--std=c++14",) and backend == "nvrtc"
        shim = ShimDevice(text=lambda bits: code)

        def get_function(kernel: str) -> Any:
            def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
                assert grid[0] > 0 and all(isinstance(a, np.ndarray | np.uint64) for a in args)
                inside = [_memory(a) if isinstance(a, np.ndarray) else a for a in args]
                shim.launch(kernel, 0, grid[0] * block[0], *inside)
                for a, m in zip(args, inside, strict=True):
                    if isinstance(m, Memory):
                        a.reshape(-1)[...] = m.view

            return launch

        return SimpleNamespace(get_function=get_function)


def _memory(array: np.ndarray) -> Memory:
    memory = Memory(array.size, array.dtype.str)
    memory.view[...] = array.reshape(-1)
    return memory


@needs_compiler
@pytest.mark.parametrize("name", ["f8e5m2", "bf16", "f32", "i64"])
def test_everything_goes_through_the_door(name: str) -> None:
    cupy = StandIn()
    for check in CHECKS.values():
        check(DeviceKernels(CupyDevice(cupy, 3)), every_way(name))
    assert set(cupy.entered) == {3}


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="float32"):
        CupyDevice(StandIn(), 0).upload(np.zeros(3, np.float32))


@pytest.mark.parametrize("error", [_NoMemory(), _CudaError(2)])
def test_no_memory_is_tried_in_halves_and_then_on_the_host(error: Exception) -> None:
    cupy = StandIn()
    cupy.broken = error
    with pytest.raises(DeviceFull):
        CupyDevice(cupy, 0).upload(np.zeros(3, np.uint8))
    for check in CHECKS.values():
        check(DeviceKernels(CupyDevice(cupy, 0)), every_way("bf16"))
    assert cupy.freed == 2 * (len(CHECKS) + 2), "exponents are counted three times"


def test_a_device_that_fails_is_named() -> None:
    cupy = StandIn()
    cupy.broken = _CudaError(719)
    with pytest.raises(ResourceError, match=r"GPU 4: found cudaError 719.*device: cpu"):
        CupyDevice(cupy, 4).upload(np.zeros(3, np.uint8))


# -- which room -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in cuda._LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def _with(cupy: StandIn | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # None makes the import fail


@needs_compiler
@pytest.mark.parametrize(("local", "number"), [(None, 0), ("0", 0), ("1", 1), ("5", 1), ("none", 0)])
def test_each_rank_of_a_node_takes_its_own_gpu(local: str | None, number: int, no_launcher: pytest.MonkeyPatch) -> None:
    cupy = StandIn(devices=2)
    _with(cupy, no_launcher)
    if local is not None:
        no_launcher.setenv("SLURM_LOCALID", local)
    open_device()
    assert set(cupy.entered) == {number}
    assert get_kernels(device="auto").device == get_kernels(device="cuda").device == "cuda"
    assert get_kernels(device="cpu").device == get_kernels().device == "cpu"
    assert get_kernels("numpy", "auto").device == "cpu"


def test_without_cupy_auto_is_the_host_and_cuda_says_what_is_missing(no_launcher: pytest.MonkeyPatch) -> None:
    _with(None, no_launcher)
    assert (get_kernels(device="auto").name, get_kernels(device="auto").device) == ("numba", "cpu")
    with pytest.raises(UsageError, match=r"device: cuda: found no cupy.*dcr-mpi\[cuda\]"):
        get_kernels(device="cuda")


def test_without_a_gpu(no_launcher: pytest.MonkeyPatch) -> None:
    cupy = StandIn(devices=0)
    _with(cupy, no_launcher)
    assert get_kernels(device="auto").device == "cpu"
    with pytest.raises(UsageError, match="device: cuda: found no GPU"):
        get_kernels(device="cuda")

    def driver() -> int:
        raise _CudaError(35)

    cupy.cuda.runtime.getDeviceCount = driver
    assert get_kernels(device="auto").device == "cpu"
    with pytest.raises(UsageError, match=r"no GPU \(cudaError 35\)"):
        get_kernels(device="cuda")


def test_a_gpu_that_does_not_work(no_launcher: pytest.MonkeyPatch) -> None:
    cupy = StandIn()
    cupy.broken = RuntimeError("no libnvrtc\nand more")
    _with(cupy, no_launcher)
    assert get_kernels(device="auto").device == "cpu"
    with pytest.raises(UsageError, match=r"GPU 0, on which a first kernel failed \(no libnvrtc\).*docs/gpu.md"):
        get_kernels(device="cuda")


@pytest.mark.parametrize(("name", "device"), [("numba", "tpu"), ("numpy", "cuda"), ("cupy", "auto")])
def test_choices_that_do_not_exist(name: str, device: str) -> None:
    with pytest.raises(UsageError):
        get_kernels(name, device)
