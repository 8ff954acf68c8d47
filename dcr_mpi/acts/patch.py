"""Writing a journal's patches into a shard: block by block, each held against its digest before it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from .. import durable
from ..digest import block_digest
from ..errors import CorruptInput, VerifyFailed, from_os_error
from ..hdf5 import Stamp, stamp_of
from ..journal import Patch
from ..kernels.api import Kernels
from ..scratch import Scratch
from .replica import RESTORE


def patch_file(
    path: Path,
    patches: Iterable[Patch],
    kernels: Kernels,
    names: Sequence[str],
    allowed: Callable[[], None] = lambda: None,
) -> Stamp:
    """Write patches into a shard and make it durable. Replayable from any state between base and target. Returns how
    the file is seen then.

    ``names`` are the shard's dataset paths, in its inventory's order. ``allowed`` is called before each block is
    written, and raises where it must not be any more.

    Each block is read, patched in memory, held against the digest that it must have, and written with one call.

    Raises
    ------
    VerifyFailed
        A patched block is not the target; it is not written, the ones before it are (and are the target's).
    ResourceError
        The medium failed or is read-only; run again once it is mended.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            scratch = Scratch()
            for patch in patches:
                _patch(fd, patch, kernels, names, path, scratch, allowed)
            durable.sync(fd)
            return stamp_of(os.fstat(fd))
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(error, f"writing {path}") from error


def _patch(
    fd: int,
    patch: Patch,
    kernels: Kernels,
    names: Sequence[str],
    path: Path,
    scratch: Scratch,
    allowed: Callable[[], None],
) -> None:
    width = patch.words.itemsize
    block = scratch.words("block", patch.size, width)
    stop = patch.start + patch.size
    if patch.region.contiguous:
        at = patch.offset + patch.region.locate(patch.start) * width
        _read(fd, block, at, path)
        _change(block, patch, kernels, names, path)
        allowed()
        _write(fd, block, at)
        return
    windows = [
        (a, b, *patch.region.span(a, b)) for a, b in patch.region.windows(patch.start, stop, max(patch.size, 1 << 20))
    ]
    held = []
    for a, b, first, last in windows:
        window = np.empty(last - first, patch.words.dtype)
        _read(fd, window, patch.offset + first * width, path)
        patch.region.gather(window, a, b, block[a - patch.start : b - patch.start])
        held.append(window)
    _change(block, patch, kernels, names, path)
    for (a, b, first, _), window in zip(windows, held, strict=True):
        patch.region.put(window, a, b, block[a - patch.start : b - patch.start])
        allowed()
        _write(fd, window, patch.offset + first * width)


def _change(block: np.ndarray, patch: Patch, kernels: Kernels, names: Sequence[str], path: Path) -> None:
    """Put a patch's words into its block, and hold the result against the target's digest."""
    if patch.gaps is None or patch.escapes is None:
        block[:] = patch.words
    else:
        counts, sizes = np.array([len(patch.gaps)], np.int64), np.array([patch.size], np.int64)
        positions = kernels.unpack_gaps(patch.gaps, patch.escapes, counts, sizes)
        kernels.scatter(block, np.zeros(1, np.int64), counts, positions, patch.words)
    if block_digest(block) != patch.target:
        raise VerifyFailed(
            f"dataset {names[patch.dataset]!r} of {path}, words {patch.start}..{patch.start + patch.size} of its box",
            found="another digest after patching",
            expected="the target's",
            remedy="the replica was changed after prepare. " + RESTORE,
        )


def _read(fd: int, words: np.ndarray, at: int, path: Path) -> None:
    view = memoryview(words).cast("B")
    while view:
        done = os.preadv(fd, [view], at)
        if not done:
            raise CorruptInput(
                f"replica shard {path}", found=f"its end at byte {at}", expected="the size it was created with"
            )
        view, at = view[done:], at + done


def _write(fd: int, words: np.ndarray, at: int) -> None:
    view = memoryview(words).cast("B")
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
