"""All measurements in turn, as one :class:`dcr_mpi.plan.Speeds`."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..kernels.api import Kernels
from ..mounts import mount_of
from ..plan import DEFAULTS, Speeds
from ..store import S3Options, open_store
from .acts import fixed_costs
from .coding import Sample, coding
from .disk import disk
from .neighbours import neighbours
from .process import opening_s
from .storing import storing
from .timing import core_share

_MEMORY = Path("/dev/shm")
_COPIES = 12  # of the words: twice two checkpoints, what a site holds, a replica, and room for journals


@dataclass(frozen=True)
class Stored:
    """A store: where it is, and how to open it."""

    url: str
    options: S3Options


def calibrate(
    kernels: Kernels,
    sample: Sample,
    directory: Path,
    place: Stored | None,
    ranks: int = 1,
) -> Speeds:
    """Measure.

    Parameters
    ----------
    sample : Sample
        At a third of its fraction and at twice it, and a line is put through both. Its bucket is ``codec.bucket_mib``:
        what of it fits a cache makes a difference.
    directory : Path
        Whose disk is measured; everything else is done in memory, there if it is, else where such a file system is.
    place : Stored, optional
        Objects are put there under ``calibration/`` and deleted again. None leaves the defaults.
    ranks : int
        That code at the same time, of which one is measured.

    Raises
    ------
    ResourceError, StoreUnavailable, StoreDenied
        The disk is full, or the store refuses.
    """
    rate, sync_s = disk(directory)
    share = core_share()
    with tempfile.TemporaryDirectory(prefix="dcr-calibrate-", dir=_where(directory, sample.size * ranks)) as scratch:
        acts = fixed_costs(kernels, Path(scratch))
        tile_s = {"encode": acts.encode_tile_s, "prepare": acts.prepare_tile_s}
        with neighbours(ranks - 1, sample, Path(scratch)):
            coded = coding(kernels, sample, Path(scratch), tile_s)
        opened = opening_s(place.url, place.options, Path(scratch)) if place is not None else 0.0
    asked = storing(open_store(place.url, place.options)) if place is not None else None
    return Speeds(
        source=f"dcr bench on {platform.node()}" + ("" if place is not None else "; store: the defaults"),
        law=sample.law,
        fraction=sample.fraction,
        core_share=share,
        memcpy=coded.memcpy,
        encode=coded.encode,
        prepare=coded.prepare,
        apply=coded.apply,
        disk_rate=rate,
        sync_s=sync_s,
        put_s=asked.put_s if asked else DEFAULTS.put_s,
        get_s=asked.get_s if asked else DEFAULTS.get_s,
        put_rate=asked.put_rate if asked else None,
        get_rate=asked.get_rate if asked else None,
        put_byte_s=asked.put_byte_s if asked else DEFAULTS.put_byte_s,
        get_byte_s=asked.get_byte_s if asked else DEFAULTS.get_byte_s,
        encode_act=acts.encode,
        refit_act=acts.refit,
        apply_act=acts.apply,
        start_s=acts.start_s + opened,
        encode_tile_s=acts.encode_tile_s,
        prepare_tile_s=acts.prepare_tile_s,
    )


def _where(directory: Path, size: int) -> Path:
    """The directory, if it is in memory or nothing else is that has room."""
    if mount_of(directory).in_memory or not os.access(_MEMORY, os.W_OK):
        return directory
    return _MEMORY if shutil.disk_usage(_MEMORY).free > _COPIES * size else directory
