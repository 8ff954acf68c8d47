"""What a machine does in a second: measured by ``dcr bench``, or the defaults here, whose sources are stated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptInput, UsageError
from ..jsonable import loads


@dataclass(frozen=True)
class Cost:
    """Seconds of one core: for each dense byte, and for each changed word besides."""

    byte_s: float
    change_s: float

    def seconds(self, dense_bytes: float, changed: float) -> float:
        return dense_bytes * self.byte_s + changed * self.change_s


@dataclass(frozen=True)
class Fixed:
    """What an act costs besides the words: documents read, checked and written; once, and for each tile."""

    once_s: float
    tile_s: float

    def seconds(self, tiles: float) -> float:
        return self.once_s + tiles * self.tile_s


@dataclass(frozen=True)
class Speeds:
    """A calibration; rates are bytes per second, times are seconds.

    ``encode`` has the self-check in it, ``prepare`` all that a rank does with a part once it is there. Both by
    positions. ``apply`` is one core's work on a replica in the page cache; what the disk then takes is ``disk_rate``
    (fsync of what was written, one node), with ``sync_s`` for an fsync of next to nothing. ``put_s`` and ``get_s`` are
    one small request to the store, ``put_rate`` and ``get_rate`` one stream of bytes; both are None where no store was
    measured.
    ``put_byte_s`` and ``get_byte_s`` are work of this machine for a byte of it, the store's too where that runs here.
    ``encode_act``, ``refit_act`` and ``apply_act``: fixed costs in a job that stays; ``start_s``: interpreter, imports
    and compiled kernels of one process. ``encode_tile_s`` and ``prepare_tile_s`` are what coding takes for each tile,
    besides its words.

    All work is in seconds of a core. ``core_share`` is what one busy process got of a core: less than 1 where others
    were at work on the machine, and then a plan for one machine counts with them.
    """

    source: str
    law: str
    fraction: float
    core_share: float
    memcpy: float
    encode: dict[str, Cost]
    prepare: dict[str, Cost]
    apply: Cost
    disk_rate: float
    sync_s: float
    put_s: float
    get_s: float
    put_rate: float | None
    get_rate: float | None
    put_byte_s: float
    get_byte_s: float
    encode_act: Fixed
    refit_act: Fixed
    apply_act: Fixed
    start_s: float
    encode_tile_s: float
    prepare_tile_s: float


# Work and starts: dcr bench on a machine with nothing else to do, bf16 adam at 3 %, the mean of two runs. Store: 100 ms
# a request, the lower end of what AWS tells of S3 ("Best practices design patterns: optimizing Amazon S3 performance").
# Disk: an assumption, one NVMe drive.
DEFAULTS = Speeds(
    source="defaults: cores of an idle EPYC (Zen 5), S3 at 100 ms a request, disk 1 GB/s",
    law="adam",
    fraction=0.03,
    core_share=1.0,
    memcpy=19e9,
    encode={"class": Cost(0.86e-9, 40e-9), "plain": Cost(0.31e-9, 15e-9)},
    prepare={"class": Cost(0.46e-9, 31e-9), "plain": Cost(0.19e-9, 10e-9)},
    apply=Cost(0.27e-9, 1.1e-9),
    disk_rate=1e9,
    sync_s=0.005,
    put_s=0.1,
    get_s=0.1,
    put_rate=None,
    get_rate=None,
    put_byte_s=0.0,
    get_byte_s=0.0,
    encode_act=Fixed(0.01, 1.2e-4),
    refit_act=Fixed(0.005, 7e-5),
    apply_act=Fixed(0.003, 4e-5),
    start_s=1.0,
    encode_tile_s=6e-5,
    prepare_tile_s=4e-5,
)


def read_speeds(path: Path) -> Speeds:
    """A calibration file.

    Raises
    ------
    UsageError
        Not readable, or not what ``dcr bench`` writes.
    """
    try:
        speeds = loads(Speeds, path.read_bytes(), f"calibration {path}")
    except OSError as error:
        raise UsageError(
            f"calibration {path}",
            found=error.strerror or str(error),
            expected="a readable file",
            remedy="make one with dcr bench --out FILE, or leave it out",
        ) from None
    except CorruptInput as error:
        raise UsageError(
            error.what, found=error.found, expected=error.expected, remedy="make it with dcr bench"
        ) from None
    check_speeds(speeds, str(path))
    return speeds


def check_speeds(speeds: Speeds, what: str) -> None:
    """Raise UsageError for numbers that no machine has."""
    rates = {
        "memcpy": speeds.memcpy,
        "disk_rate": speeds.disk_rate,
        "put_rate": speeds.put_rate,
        "get_rate": speeds.get_rate,
    }
    costs = {**speeds.encode, **{f"prepare {k}": v for k, v in speeds.prepare.items()}, "apply": speeds.apply}
    fixed = {"encode_act": speeds.encode_act, "refit_act": speeds.refit_act, "apply_act": speeds.apply_act}
    times = {"sync_s": speeds.sync_s, "put_s": speeds.put_s, "get_s": speeds.get_s, "start_s": speeds.start_s}
    times |= {"put_byte_s": speeds.put_byte_s, "get_byte_s": speeds.get_byte_s}
    times |= {"encode_tile_s": speeds.encode_tile_s, "prepare_tile_s": speeds.prepare_tile_s}
    times |= {f"{k}.{n}": v for k, c in costs.items() for n, v in (("byte_s", c.byte_s), ("change_s", c.change_s))}
    times |= {f"{k}.{n}": v for k, c in fixed.items() for n, v in (("once_s", c.once_s), ("tile_s", c.tile_s))}
    bad = [(k, v) for k, v in rates.items() if v is not None and not 1 <= v <= 1e15]
    bad += [(k, v) for k, v in times.items() if not 0 <= v <= 1e6]
    missing = [
        f"{act}.{p}" for act in ("encode", "prepare") for p in ("class", "plain") if p not in getattr(speeds, act)
    ]
    bad += [] if 1e-3 <= speeds.core_share <= 1 else [("core_share", speeds.core_share)]
    bad += [] if 0 < speeds.fraction < 1 else [("fraction", speeds.fraction)]
    missing += [] if speeds.law in ("adam", "uniform") else [f"law {speeds.law!r}"]
    if bad or missing:
        found = f"{bad[0][0]} of {bad[0][1]}" if bad else f"no {missing[0]}"
        raise UsageError(
            f"calibration {what}",
            found=found,
            expected="bytes per second from 1 to 1e15, seconds from 0 to 1e6, shares over 0 and up to 1",
            remedy="make it with dcr bench",
        )
