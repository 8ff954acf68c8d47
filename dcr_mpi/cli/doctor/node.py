"""This machine, for the ranks on it: packages, cores, memory, compiled kernels, GPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...config import Config
from ...errors import UsageError
from ...kernels import get_kernels
from ...units import bytes_text as size
from .finding import Finding, ok, warn

PACKAGES = ("dcr-mpi", "numpy", "numba", "h5py", "mpi4py", "boto3", "zstandard", "xxhash", "hdf5plugin", "cryptography")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_MIB = 1 << 20


def versions() -> dict[str, str]:
    """Python and the packages that must agree among ranks; "" where one is not installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def packages() -> Iterator[Finding]:
    yield ok("packages", ", ".join(f"{name} {number}" for name, number in versions().items() if number))


def cores(ranks_here: int, env: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Cores that this process may use, for the ranks on this machine."""
    have = len(os.sched_getaffinity(0))
    told = ", ".join(f"{name}={env[name]}" for name in _THREADS if env.get(name))
    if ranks_here > have and ranks_here > 1:
        yield warn("cores", f"{have} for {ranks_here} ranks here", "a core for each",
                   "start fewer ranks, or ask for more: srun -c 1, mpirun --bind-to none")  # fmt: skip
    else:
        ranks = f"{ranks_here} rank{'s' * (ranks_here > 1)} here"
        yield ok("cores", f"{have} of {os.cpu_count()} for {ranks}" + (f"; {told}" if told else ""))


def memory(config: Config, ranks_here: int, meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """Available memory for what each rank takes at most; docs/operations.md has the formula."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    have = int(lines["MemAvailable"].split()[0]) * 1024
    need = ranks_here * int(280 + 10 * min(config.codec.bucket_mib, config.codec.part_mib)) * _MIB
    if have < need:
        yield warn("memory", f"{size(have)} available", f"{size(need)} for {ranks_here} ranks of an anchor",
                   "lower codec.bucket_mib, or start fewer ranks on a node")  # fmt: skip
    else:
        yield ok("memory", f"{size(have)} available, {size(need)} needed at most")


def compiled() -> Iterator[Finding]:
    """Where numba keeps compiled kernels."""
    from ...kernels.jitting import cache_folder

    folder = cache_folder()
    if folder is None:
        yield warn("kernel cache", "no directory that may be written: every process compiles for half a minute",
                   "NUMBA_CACHE_DIR, the package's own directory, or the home directory's cache",
                   "export NUMBA_CACHE_DIR to a directory that all ranks may write")  # fmt: skip
    else:
        yield ok("kernel cache", folder)


def gpu(config: Config, dev: Path = Path("/dev")) -> Iterator[Finding]:
    """What ``device`` comes to here. Raises UsageError where cuda is asked for and is not there."""
    if config.device == "cpu" or config.kernels == "numpy":
        yield ok("gpu", f"not asked for (device: {config.device}, kernels: {config.kernels})")
        return
    try:
        yield ok("gpu", get_kernels(config.kernels, "cuda").device)
    except UsageError as error:
        if config.device == "cuda":
            raise
        if (dev / "nvidiactl").exists():
            yield warn("gpu", f"{error.found}, though this machine has an NVIDIA driver", "a GPU that works",
                       error.remedy)  # fmt: skip
        else:
            yield ok("gpu", f"the host's kernels (device: auto): {error.found}")
