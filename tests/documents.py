"""Mutated JSON objects against the acts that read them: ``python -m tests.documents --count 10000``.

Everything that a side reads from the store or from its own records is damaged as an attacker would who may write the
store and has no key to fear: another type or a hostile value somewhere, keys missing, added or twice, text that is no
JSON, and then, more often than not, with digests, sums and names made right again. The acts themselves read it. What
may come out is an error of dcr_mpi.errors, or an act that did what it should: the replica holds the bits of one
version or of the next, and no file appears anywhere else.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from dcr_mpi.acts.commit import decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.init import register_site
from dcr_mpi.acts.next_version import EncodeJob, find_next, open_version
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.acts.replica import journal
from dcr_mpi.cli.inspect import inspect
from dcr_mpi.cli.status import status
from dcr_mpi.config import load
from dcr_mpi.digest import sha256, state_digest
from dcr_mpi.errors import DcrError, NotReady, from_os_error
from dcr_mpi.jsonable import dumps, loads
from dcr_mpi.model import Policy
from tests.acts.local import SMALL, Local
from tests.faults.test_adversary import checkpoint

# Texts that Python's own encoder would not write stand in for these.
RAW = {
    "@nan": "NaN", "@inf": "-Infinity", "@huge": "1e999", "@digits": "9" * 4000, "@more": "9" * 6000,
    "@deep": "[" * 900 + "]" * 900, "@deeper": "[" * 200_000 + "]" * 200_000, "@zero": "-0", "@cut": "{",
}  # fmt: skip
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**300, 0.0, 1.5,
    1e308, "", ".", "..", "../x", "../../x", "/abs", "a/b", ".dcr", ".dcr/replica.json", "x" * 300, "x" * 100_000,
    "\ud800", "\0", "\n", "\x1b[31m", "é", "0" * 32, "f" * 64, "bf16", "raw9", "f128", [], {}, [[]], {"": []}, [0] * 40,
    {"x": 1}, *RAW,
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What is damaged, and an act that reads it. ``path`` is below the world."""

    path: str
    act: Callable[[Local], object]


@dataclass
class Report:
    """How a campaign went: verdicts by target; what went wrong; the slowest mutant; memory."""

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # by class
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds
    grown: int = 0  # bytes of resident memory, at the highest


def _create(world: Local) -> object:
    return create_replica(world.site_ports, CreateJob("s", world.path / "second"))


def _join(world: Local) -> object:
    register_site(world.site_ports, "t", None)
    return create_replica(world.site_ports, CreateJob("t", world.path / "second"))


def _decide(world: Local) -> object:
    (world.path / "store/p/versions/000002/decision.json").unlink(missing_ok=True)
    return decide(world.ports.catalog, 2, wait_s=0)


def _prepare_anew(world: Local) -> object:
    world.drop_journals(2)
    return world.prepare(2)


def _follow(world: Local) -> object:
    """Take version 2 as if it were still being encoded."""
    for name in ("manifest.json", "decision.json"):
        (world.path / V2 / name).unlink(missing_ok=True)
    world.drop_journals(2)
    job = PrepareJob("s", world.replica.directory, 2, wait_s=0.02, poll_s=(0.001, 0.01))
    try:
        return prepare(world.site_ports, job)
    except NotReady as error:
        if error.what != "manifest of version 2":
            raise
        return None  # all parts were taken, and there is no more to be had


def _status(world: Local) -> object:
    config = load(None, {"policy": "p", "store.url": str(world.path / "store")})
    return status(world.ports.catalog, config, 5)


def _encode(world: Local) -> object:
    return world.encode(world.path / "s3")


V1, V2, V3 = (f"store/p/versions/00000{n}" for n in (1, 2, 3))
TARGETS = {
    "policy, joining": Target("store/p/policy.json", _join),
    "policy, known": Target("store/p/policy.json", Local.prepare),
    "policy, at the trainer": Target("store/p/policy.json", _encode),
    "layout, creating": Target("store/p/layouts/s.json", _create),
    "layout, known": Target("store/p/layouts/s.json", _prepare_anew),
    "layout, at apply": Target("store/p/layouts/s.json", Local.apply),
    "layout, at the trainer": Target("store/p/layouts/s.json", _encode),
    "tiling": Target("tiling", _prepare_anew),
    "anchor's tiling": Target("anchor tiling", _create),
    "open": Target(f"{V3}/open.json", _encode),
    "announcement": Target(f"{V2}/stream/000000.json", _follow),
    "manifest": Target(f"{V2}/manifest.json", _prepare_anew),
    "manifest, prepared": Target(f"{V2}/manifest.json", Local.apply),
    "manifest, as a base": Target(f"{V2}/manifest.json", _encode),
    "anchor": Target("store/p/anchors/000000/manifest.json", _create),
    "prepared": Target(f"{V2}/prepared/s.json", _decide),
    "decision": Target(f"{V2}/decision.json", Local.apply),
    "decision, listed": Target(f"{V2}/decision.json", _status),
    "applied": Target(f"{V1}/applied/s.json", lambda w: w.apply(1)),
    "replica record": Target("replica/.dcr/replica.json", Local.apply),
    "replica record, to prepare": Target("replica/.dcr/replica.json", _prepare_anew),
    "replica record, creating": Target(
        "replica/.dcr/replica.json", lambda w: create_replica(w.site_ports, CreateJob("s", w.replica.directory))
    ),
    "local receipt": Target("replica/.dcr/v000002/e00000004/prepared.json", Local.apply),
    "journal": Target("replica/.dcr/v000002/e00000004/000000.journal", Local.apply),
    "journal, again": Target("replica/.dcr/v000002/e00000004/000000.journal", lambda w: w.prepare(2)),
    "journal, inspected": Target(
        "replica/.dcr/v000002/e00000004/000000.journal", lambda w: inspect(journal(w.replica.journals(2, 4), 0))
    ),
    "publisher's record": Target("state/baseline.json", _encode),
}


def make_world(path: Path) -> None:
    """Version 1 applied, 2 committed and prepared, 3 opened."""
    steps = [checkpoint(path / f"s{n}", n) for n in range(4)]
    world = Local(path, None, None, kernels="numpy")
    world.begin(steps[0])
    world.cycle(steps[1])
    world.encode(steps[2])
    world.prepare()
    world.commit()
    catalog = world.ports.catalog
    job = EncodeJob(steps[3], None, path / "state", ("s",), SMALL)
    open_version(catalog, job, catalog.policy()[0], find_next(catalog, job, catalog.policy()[0]))


# -- damage -----------------------------------------------------------------------------------------------------------


def _spots(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside."""
    if isinstance(plain, (dict, list)):
        for key in plain if isinstance(plain, dict) else range(len(plain)):
            yield plain, key
            yield from _spots(plain[key])


def mutate(text: bytes, rng: random.Random) -> bytes:
    """Another text: damaged in its structure, or in its bytes."""
    if rng.random() < 0.15:
        raw = bytearray(text)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(raw) + 1)
            raw[at : at + rng.choice([0, 1, 1, 9])] = rng.choice([b"", bytes([rng.randrange(256)]), rng.randbytes(8)])
        return rng.choice(
            [bytes(raw), bytes(raw), text[: rng.randrange(len(text))], text + text, b"\xef\xbb\xbf" + text]
        )
    plain = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2])):
        container, key = rng.choice(list(_spots(plain)))
        how = rng.randrange(12)
        if how < 7:
            alike = [v for v in HOSTILE if type(v) is type(container[key]) and str(v) not in RAW]
            container[key] = copy.deepcopy(rng.choice(alike if alike and how < 5 else HOSTILE))
        elif how == 7:
            del container[key]
        elif how == 8:
            if isinstance(container, dict):
                container[rng.choice(["", "x", "../x", "\ud800", "format", "x" * 50_000])] = copy.deepcopy(
                    rng.choice(HOSTILE)
                )
            else:
                container.insert(key, copy.deepcopy(rng.choice(HOSTILE)))
        elif how == 9 and isinstance(container, list):
            container.append(container[key])
        elif how == 10 and type(container[key]) is int:
            container[key] += rng.choice([1, -1, 64, 1 << 40])
        else:
            other, at = rng.choice(list(_spots(plain)))
            container[key] = json.loads(json.dumps(other[at]))
        if not isinstance(plain, (dict, list)) or not list(_spots(plain)):
            break
    out = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for name, raw_text in RAW.items():
        out = out.replace(f'"{name}"', raw_text)
    if rng.random() < 0.05 and out.startswith('{"'):  # a key twice
        out = out[:1] + out[1:].split(",")[0] + "," + out[1:]
    return out.encode("utf-8", "surrogatepass")


def plant(world: Path, target: Target, rng: random.Random) -> None:
    """Damage one object of a world, and mostly make right what hangs on it."""
    cctx = zstandard.ZstdCompressor()
    if "tiling" in target.path:
        holder = world / ("store/p/anchors/000000" if "anchor" in target.path else V2) / "manifest.json"
        manifest = json.loads(holder.read_bytes())
        tilings = world / "store/p/tilings"
        text = zstandard.ZstdDecompressor().decompress((tilings / f"{manifest['tiling']}.json.zst").read_bytes())
        forged = mutate(text, rng)
        packed = cctx.compress(forged)
        if rng.random() < 0.1:
            packed = bytes(packed[: rng.randrange(len(packed))])
        (tilings / f"{sha256(forged)}.json.zst").write_bytes(packed)
        manifest["tiling"] = sha256(forged)
        _write(holder, dumps(manifest))
        return
    path = world / target.path
    text = path.read_bytes()
    if path.suffix == ".journal":
        length = int.from_bytes(text[12:16], "little")
        forged = mutate(text[16 : 16 + length], rng)
        size = len(forged) if rng.random() < 0.7 else rng.choice([0, 1, 2**16, 2**16 + 1, 2**32 - 1])
        head = text[:12] + size.to_bytes(4, "little") + forged
        from dcr_mpi.digest import block_digest

        _write(path, head + block_digest(head) + text[32 + length :])
        return
    forged = mutate(text, rng)
    _write(path, forged)
    if rng.random() < 0.7:
        _make_right(world, path, text, forged)


def _make_right(world: Path, path: Path, text: bytes, forged: bytes) -> None:
    """Sums and digests that follow from a damaged object, as far as they can."""
    try:
        plain = json.loads(forged)
        if path.name == "manifest.json":
            policy = loads(Policy, (world / "store/p/policy.json").read_bytes(), "policy")
            for ours, theirs in (("payload_bytes", "size"), ("elements", "elements"), ("changed", "changed")):
                plain[ours] = sum(p[theirs] for p in plain["parts"])
            plain["state"] = state_digest(policy.tensors, plain["tensors"])
            forged = dumps(plain)
            _write(path, forged)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    for other in (world / "store").rglob("*.json"):  # whoever names it by its digest
        if other != path:
            raw = other.read_bytes()
            if sha256(text).encode() in raw:
                _write(other, raw.replace(sha256(text).encode(), sha256(forged).encode()))


def _write(path: Path, raw: bytes) -> None:
    path.unlink()
    path.write_bytes(raw)


# -- campaign ---------------------------------------------------------------------------------------------------------


def shards(world: Path) -> str:
    return sha256(b"".join(p.read_bytes() for p in sorted((world / "replica").glob("*.h5"))))


def outside(world: Path) -> set[str]:
    """Every file that no act may have made."""
    inside = ("replica/.dcr/", "store/", "state/", "second/.dcr/")
    names = {str(p.relative_to(world)) for p in world.rglob("*") if p.is_file()}
    made = {n for n in names if n.startswith("second/") and n.count("/") == 1}  # a site may name its shards as it likes
    return {n for n in names - made if not n.startswith(inside)} | set(os.listdir(world.parent))


def once(master: Path, place: Path, target: Target, seed: int, after: str) -> str:
    """One mutant; the verdict. Raises AssertionError, or whatever an act let through."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(master, place)
    plant(place, target, random.Random(seed))
    world, before, files = Local(place, None, None, kernels="numpy"), shards(place), outside(place)
    verdict, said = "accepted", ""
    try:
        target.act(world)
    except DcrError as error:
        verdict, said = type(error).__name__, str(error)
    except OSError as error:  # as dcr_mpi.cli.main does
        verdict, said = type(from_os_error(error, str(error.filename))).__name__, ""
    assert len(said) < 10_000, "a message that grows with what is wrong"
    assert shards(place) in ((before, after) if target.act is Local.apply else (before,)), "bits of no version"
    assert outside(place) <= files, f"files made outside: {outside(place) - files}"
    return verdict


def campaign(seed: int, count: int) -> Report:
    """``count`` mutants, dealt out over all targets."""
    report = Report()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        master, done, place = (Path(folder) / name / "w" for name in ("master", "done", "place"))
        master.mkdir(parents=True)
        place.parent.mkdir()
        make_world(master)
        shutil.copytree(master, done)
        Local(done, None, None, kernels="numpy").apply()
        after = shards(done)
        names = list(TARGETS)
        for name in names:  # each act does its work where nothing is damaged
            shutil.copytree(master, place)
            TARGETS[name].act(Local(place, None, None, kernels="numpy"))
            shutil.rmtree(place)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(count):
            name = names[turn % len(names)]
            number = seed * 1_000_000_007 + turn
            start = time.monotonic()
            try:
                verdict = once(master, place, TARGETS[name], number, after)
            except Exception:
                report.failures.append(f"{name!r}, seed {number}:\n{traceback.format_exc()[-3000:]}")
                continue
            report.verdicts[f"{name}: {'accepted' if verdict == 'accepted' else 'refused'}"] += 1
            report.refused[verdict] += verdict != "accepted"
            report.slowest = max(report.slowest, time.monotonic() - start)
        report.grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory)
    return report


def run(quick: bool) -> tuple[dict[str, int], list[str]]:
    """The campaign's counts by verdict, and its failures."""
    report = campaign(1, 500 if quick else 50_000)
    return dict(report.verdicts), report.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.monotonic()
    report = campaign(options.seed, options.count)
    for failure in report.failures[:20]:
        print(failure, file=sys.stderr)
    for verdict, n in sorted(report.verdicts.items()):
        print(f"{n:7} {verdict}")
    print(
        f"{options.count} mutants in {time.monotonic() - start:.0f} s: {len(report.failures)} failures; refused as "
        f"{dict(report.refused)}; slowest {report.slowest:.2f} s, memory grew by {report.grown >> 20} MiB"
    )
    return bool(report.failures)


if __name__ == "__main__":
    sys.exit(main())
