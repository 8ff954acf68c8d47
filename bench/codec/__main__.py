"""``python -m bench.codec [--quick]``: sizes and speeds of every scheme; writes ``bench/out/codec.json``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from bench.real.checkpoints import OUT as REAL
from dcr_mpi.kernels import get_kernels

from .data import DataSet, adam, real, uniform
from .report import aligned, claims, sizes, table
from .run import Result, run, threads

OUT = Path("bench/out")
_MEMORY = Path("/dev/shm")
_TURNS = 3


def data_sets(quick: bool, size: int, directory: Path) -> Iterator[Callable[[], DataSet]]:
    """What to load, one at a time."""
    for percent in (1, 3, 5) if quick else (0.5, 1, 3, 5, 10):
        yield lambda p=percent: adam("bf16", p / 100, size)  # type: ignore[misc]
    for percent in (3,) if quick else (1, 3, 5):
        yield lambda p=percent: uniform(p / 100, size)  # type: ignore[misc]
    for kind in ("f32",) if quick else ("f16", "f32", "f8e4m3", "f8e5m2"):
        yield lambda k=kind: adam(k, 0.03, size // 4, "types")  # type: ignore[misc]
    if not quick:
        yield from real(directory)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, under a minute on two cores")
    parser.add_argument("--mib", type=int, help="dense MiB of a data set: 128, or 16 when quick")
    parser.add_argument("--kernels", default="numba", choices=["numba", "numpy"])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--real", type=Path, default=REAL, help="where bench.real left its pairs")
    args = parser.parse_args(arguments)
    begun, kernels, results = time.monotonic(), get_kernels(args.kernels), []
    size = (args.mib or (16 if args.quick else 128)) << 20
    args.out.mkdir(parents=True, exist_ok=True)
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dcr-bench-", dir=where) as scratch:
        print(f"shard and journal on {'a file system in memory' if where else 'the disk of ' + scratch}")
        print("dense bytes per CPU second of one thread, medians of turns; encode to apply are ratios to memcpy in the")
        print("same turns; coding is encode less reading both checkpoints; checked is encode with the self-check\n")
        for load in data_sets(args.quick, size, args.real):
            results.append(run(load(), kernels, Path(scratch), _TURNS))
            print(table(results[-1]), end="\n\n", flush=True)
        scaling = threads(adam("bf16", 0.03, 2 * size if args.quick else size), kernels, Path(scratch), _TURNS)
    _close(results, scaling)
    (args.out / "codec.json").write_text(json.dumps([asdict(row) for r in results for row in r.rows], indent=1))
    print(f"{args.out / 'codec.json'} written; {time.monotonic() - begun:.0f} s in all")
    return 0


def _close(results: list[Result], scaling: dict[str, dict[int, float]]) -> None:
    """The tables over several data sets."""
    found = [r for r in results if r.family == "real"]
    if found:
        print("real pairs, bits per changed weight (tensors as they are, embeddings included)")
        print(sizes(found), end="\n\n")
    print("the paper's claims on its own format (u16 gaps, zstd-1), and what we see")
    print(claims(results), end="\n\n")
    lines = [["encode, 3 %, wall-clock", "1 thread GB/s", "2 threads GB/s", "x"]]
    lines += [[name, f"{s[1]:.2f}", f"{s[2]:.2f}", f"{s[2] / s[1]:.2f}"] for name, s in scaling.items()]
    print(aligned(lines), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
