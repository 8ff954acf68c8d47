"""One data set: every scheme's size, then all of them timed in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dcr_mpi.calibrate.timing import copier, on_threads, seconds, wall_seconds
from dcr_mpi.calibrate.world import World
from dcr_mpi.codec import Scheme
from dcr_mpi.kernels.api import Kernels

from .data import DataSet
from .floors import Floors, floors
from .formats import FORMATS

OURS = {
    "auto, ulp": Scheme(),
    "class, ulp": Scheme("class"),
    "plain, ulp": Scheme("plain"),
    "plain, xor": Scheme("plain", "xor"),
    "plain, overwrite": Scheme("plain", "overwrite"),
    "dense": Scheme("dense"),
}


_CHECKED = ("auto, ulp", "plain, ulp")
_TOLD = 0.1  # of encoding, at least, must be left once reading is taken off


@dataclass(frozen=True)
class Row:
    """What the JSON has for each data set and scheme; GB/s are of dense bytes, one thread, CPU time.

    ``encode_gb_s`` is all that an encoding rank does but upload: reading both checkpoints (here from memory), diff,
    digests, coding, framing. ``coding_gb_s`` is the same less the reading, which the reference formats here have none
    of; None where a disturbed machine read for as long as it encoded. ``encode_checked_gb_s`` decodes every part again
    before it leaves, as the default settings do. ``prepare_gb_s`` reads and checks the base, decodes, checks the
    target, sums the state digest, and writes the journal. ``apply_gb_s`` replays the journal, which is the same for
    every scheme; a reference format has none, and what it does is decode in place.
    """

    data: str
    family: str
    changed_fraction: float
    scheme: str
    bits_per_changed: float
    floor_bits: float
    encode_gb_s: float
    coding_gb_s: float | None
    encode_checked_gb_s: float | None
    prepare_gb_s: float | None
    apply_gb_s: float | None
    memcpy_gb_s: float
    payload_bytes: int
    dense_bytes: int


@dataclass(frozen=True)
class Result:
    data: str
    family: str
    floors: Floors
    rows: list[Row]


def run(data: DataSet, kernels: Kernels, directory: Path, rounds: int) -> Result:
    """Measure one data set; every scheme's output is carried to the target and compared first."""
    world, changed, dense = World(data, kernels, directory), data.changed, data.dense_bytes
    copy, copied = copier()
    work: dict[str, Callable[[], object]] = {"memcpy": copy, "read": world.read}
    sizes: dict[str, int] = {}
    for name, scheme in OURS.items():
        parts = world.encode(scheme, check=True)
        world.check(parts)
        sizes[name] = sum(len(p.data) for p in parts)
        work[f"{name}/encode"] = lambda scheme=scheme: world.encode(scheme)  # type: ignore[misc]
        if name in _CHECKED:
            work[f"{name}/checked"] = lambda scheme=scheme: world.encode(scheme, check=True)  # type: ignore[misc]
        work[f"{name}/prepare"] = lambda parts=parts: world.prepare(parts)  # type: ignore[misc]
    work["apply"] = world.apply
    scratch = [t.base.copy() for t in data.tensors]
    for form in FORMATS:
        payload = form.encode(data.tensors)
        sizes[form.name] = len(payload)

        def decode(form=form, payload=payload) -> None:  # type: ignore[no-untyped-def]
            form.decode(payload, scratch)

        for mine, tensor in zip(scratch, data.tensors, strict=True):
            mine[...] = tensor.base
        decode()
        if any((mine != tensor.new).any() for mine, tensor in zip(scratch, data.tensors, strict=True)):
            raise SystemExit(f"{data.name}: {form.name} does not decode to what was encoded")
        work[f"{form.name}/encode"] = lambda form=form: form.encode(data.tensors)  # type: ignore[misc]
        work[f"{form.name}/apply"] = decode
    took = seconds(work, rounds, once=[what for what in work if what.startswith("dense/")])
    took |= {f"{name}/apply": took["apply"] for name in OURS}
    bound = floors(data, kernels)

    def speed(what: str, less: float = 0.0) -> float | None:
        left = took.get(what, 0.0) - less
        # Where reading by itself took about as long, the machine was disturbed, and the difference says nothing.
        return dense / left / 1e9 if what in took and left > _TOLD * took[what] else None

    rows = [
        Row(
            data.name,
            data.family,
            changed / data.words,
            name,
            8 * size / changed,
            bound.by_exponent,
            speed(f"{name}/encode") or 0.0,
            speed(f"{name}/encode", took["read"] if name in OURS else 0.0),
            speed(f"{name}/checked"),
            speed(f"{name}/prepare"),
            speed(f"{name}/apply"),
            copied / took["memcpy"] / 1e9,
            size,
            dense,
        )
        for name, size in sizes.items()
    ]
    return Result(data.name, data.family, bound, rows)


def threads(data: DataSet, kernels: Kernels, directory: Path, rounds: int) -> dict[str, dict[int, float]]:
    """Dense GB/s of encoding on 1 and on 2 threads, wall-clock, in eight parts; memcpy's scaling beside it."""
    world, dense = World(data, kernels, directory, data.dense_bytes // 8), data.dense_bytes
    copies = [copier() for _ in world.parts]
    jobs: dict[str, tuple[Callable[[int], object], int]] = {
        "memcpy": (lambda k: copies[k][0](), sum(size for _, size in copies))
    }
    for name in ("class, ulp", "plain, ulp"):
        jobs[name] = (world.builder(OURS[name], check=False).build, dense)
    work = {f"{name}/{n}": on_threads(n, job, world.parts) for name, (job, _) in jobs.items() for n in (1, 2)}
    took = wall_seconds(work, rounds)
    return {name: {n: size / took[f"{name}/{n}"] / 1e9 for n in (1, 2)} for name, (_, size) in jobs.items()}
