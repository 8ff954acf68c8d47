"""encode: what changed between the last committed version and a new checkpoint, sealed as the next version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..checkpoint import Checkpoint, check_shard_set, fingerprint
from ..digest import add, lanes_hex, lanes_of, sha256, state_digest
from ..dtypes import dtype
from ..errors import BaseMismatch, Conflict, CorruptInput, UsageError
from ..jsonable import dumps, loads
from ..layout import cut_parts, make_tiles
from ..model import Layout, Manifest, Open, PartEntry, Policy, Receipt, Tiling
from ..wire import PartHeader
from .baseline import BaselineRecord, Source
from .parts import PartBuilder
from .ports import Ports
from .publish import CodecSettings, Published, publish
from .state import checkpoint_lanes


@dataclass(frozen=True)
class EncodeJob:
    """What to encode.

    ``new`` and ``base`` are checkpoint directories (``base`` None: the one that the publisher's record names);
    ``sites`` are the registered sites that the tiles are cut for; ``state_directory`` holds the publisher's record.
    """

    new: Path
    base: Path | None
    state_directory: Path
    sites: Sequence[str]
    codec: CodecSettings = field(default_factory=CodecSettings)
    step_attribute: str = "step"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None


@dataclass(frozen=True)
class _Plan:
    """What rank 0 found in the store, for every rank."""

    policy_sha256: str
    opened: Open
    base: Manifest
    base_directory: str
    base_known: bool
    step: int | None


@dataclass(frozen=True)
class _Sealed:
    digest: str = ""
    manifest: Manifest | None = None


def encode(ports: Ports, job: EncodeJob) -> Receipt:
    """Encode the next version and seal its manifest. Every rank calls it; running it again is safe.

    Raises
    ------
    BaseMismatch
        The base directory does not hold the last committed version.
    Conflict
        Another publisher sealed this version with other content, or it is decided already.
    CorruptInput, GeometryError
        A shard is incomplete, changed while it was read, or does not fit the policy.
    """
    with ports.events.stage("plan"):
        policy = loads(Policy, ports.once("policy", lambda: dumps(ports.catalog.policy()[0])), "policy.json")
        standing = loads(
            _Sealed, ports.once("standing version", lambda: dumps(_standing(ports, job))), "standing version"
        )
        if standing.manifest is not None:
            return encoded_receipt(ports, standing.manifest, standing.digest)
        plan = loads(_Plan, ports.once("plan", lambda: dumps(_plan(ports, job, policy))), "plan")
        tiling = loads(Tiling, ports.once("tiling", lambda: dumps(ports.catalog.tiling(plan.opened.tiling))), "tiling")
    with (
        Checkpoint(Path(plan.base_directory), policy.trainer, job.step_attribute, job.dtypes) as base,
        Checkpoint(job.new, policy.trainer, job.step_attribute, job.dtypes) as new,
    ):
        with ports.events.stage("check"):
            for shard in range(ports.comm.rank, len(policy.trainer.shards), ports.comm.size):
                base.inventory(shard)
                new.inventory(shard)
            before = fingerprint(job.new, policy.trainer)
            ports.comm.barrier("inventory of all shards")
            if not plan.base_known:
                _check_base(ports, base, policy, plan.base)
        header = PartHeader(
            bytes.fromhex(plan.policy_sha256[:32]),
            bytes.fromhex(plan.opened.tiling[:32]),
            plan.opened.version,
            plan.opened.base,
            0,
            0,
        )
        builder = PartBuilder(
            policy,
            tiling,
            base,
            new,
            header,
            job.codec.scheme,
            ports.kernels,
            job.codec.bucket_bytes,
            job.codec.self_check,
        )
        published = publish(ports, builder, policy, tiling, plan.opened.version)
    if fingerprint(job.new, policy.trainer) != before:
        raise CorruptInput(
            f"checkpoint {job.new}",
            found="shards that changed while they were read",
            expected="a finished checkpoint",
            remedy="write it to another name and rename it when it is whole, then encode again",
        )
    manifest = _manifest(policy, plan, published)
    with ports.events.stage("seal"):
        digest = ports.once("manifest", lambda: _seal(ports, job, policy, plan, manifest, before).encode()).decode()
    return encoded_receipt(ports, manifest, digest)


def encoded_receipt(ports: Ports, manifest: Manifest, digest: str) -> Receipt:
    sizes = {"payload": manifest.payload_bytes, "dense": manifest.dense_bytes}
    detail = {"changed": manifest.changed, "elements": manifest.elements, "parts": len(manifest.parts)}
    return ports.receipt("encoded", "trainer", manifest, digest, sizes=sizes, detail=detail)


def _standing(ports: Ports, job: EncodeJob) -> _Sealed:
    """The version asked for, where it is sealed and decided already and was made of these very shards: a re-run."""
    record = BaselineRecord(job.state_directory)
    record.settle(ports.catalog)
    known = record.baseline()
    if job.version is None or known is None or known.version != job.version or not ports.catalog.decision(job.version):
        return _Sealed()
    policy, policy_sha = ports.catalog.policy()
    files = {name: tuple(stat) for name, stat in fingerprint(job.new, policy.trainer).items()}
    if (known.policy_sha256, known.directory, known.files) != (policy_sha, str(job.new.resolve()), files):
        return _Sealed()
    manifest, digest = ports.catalog.sealed(job.version)
    return _Sealed(digest, manifest)


def _plan(ports: Ports, job: EncodeJob, policy: Policy) -> _Plan:
    """Find the base and the number of this version in the store, open it, and settle what it is cut for."""
    catalog, record = ports.catalog, BaselineRecord(job.state_directory)
    _, policy_sha = catalog.policy()
    step = check_shard_set(job.new, policy.trainer, job.step_attribute, job.dtypes)
    record.settle(catalog)
    known = record.baseline()
    newest = catalog.last_opened(known.version if known is not None and known.policy_sha256 == policy_sha else 0)
    undecided = catalog.decision(newest) is None
    version = newest if undecided else newest + 1
    if job.version is not None and job.version != version:
        raise UsageError(
            "version",
            found=job.version,
            expected=f"{version}, the next of this policy",
            remedy="leave it out, or look at dcr status",
        )
    base, _ = catalog.last_committed(version - 1)
    directory, trusted = _base_directory(job, policy, policy_sha, base, known)
    sites = {name: catalog.layout(name) for name in sorted(job.sites)}
    for name, site in sites.items():
        if site.policy_sha256 != policy_sha:
            raise BaseMismatch(
                f"layout of site {name!r}",
                found=f"policy {site.policy_sha256[:16]}",
                expected=f"{policy_sha[:16]}",
                remedy="register the site again under a new name",
            )
    opened = catalog.opened(version)
    if opened is None:
        tiling = make_tiling(policy, policy_sha, {n: s.layout for n, s in sites.items()}, job.codec)
        digest = catalog.put_tiling(tiling)
        opened = catalog.put_open(Open(policy_sha, version, base.version, base.state, digest, len(tiling.cuts)))
    if (opened.policy_sha256, opened.base, opened.base_state) != (policy_sha, base.version, base.state):
        raise Conflict(
            f"version {version}",
            found=f"opened from base {opened.base} {opened.base_state[:16]}",
            expected=f"base {base.version} {base.state[:16]}",
            remedy="abort it: dcr commit --abort",
        )
    return _Plan(policy_sha, opened, base, str(directory), trusted, step)


def make_tiling(policy: Policy, policy_sha: str, sites: Mapping[str, Layout], codec: CodecSettings) -> Tiling:
    """The tiling of a policy for these sites."""
    tiles = make_tiles(policy, sites)
    digests = {name: sha256(dumps(layout)) for name, layout in sites.items()}
    return Tiling(
        policy_sha, digests, codec.block, tiles, cut_parts(tiles, policy.tensors, codec.block, codec.part_bytes)
    )


def _base_directory(
    job: EncodeJob, policy: Policy, policy_sha: str, base: Manifest, known: Source | None
) -> tuple[Path, bool]:
    """Where the base is, and whether the record already vouches for its bits."""
    mine = known if known is not None and _holds(known, policy_sha, base) else None
    directory = job.base if job.base is not None else Path(mine.directory) if mine is not None else None
    if directory is None:
        raise UsageError(
            "base checkpoint",
            found=f"no record of a directory that holds version {base.version}",
            expected="one",
            remedy="name it with --base; its state digest is checked",
        )
    check_shard_set(directory, policy.trainer, job.step_attribute, job.dtypes)
    directory = directory.resolve()
    if directory == job.new.resolve():
        raise UsageError(
            "checkpoints",
            found=f"{directory} as base and as new",
            expected="two directories",
            remedy="keep the baseline until the next version is committed",
        )
    files = {name: tuple(stat) for name, stat in fingerprint(directory, policy.trainer).items()}
    return directory, mine is not None and Path(mine.directory) == directory and mine.files == files


def _holds(source: Source, policy_sha: str, version: Manifest) -> bool:
    """Whether a record is about this very version."""
    return (source.policy_sha256, source.version, source.state) == (policy_sha, version.version, version.state)


def _check_base(ports: Ports, base: Checkpoint, policy: Policy, manifest: Manifest) -> None:
    lanes = checkpoint_lanes(ports, base, policy.tensors, "check base")
    for spec, have, want in zip(policy.tensors, lanes, manifest.tensors, strict=True):
        if have != want:
            raise BaseMismatch(
                f"base checkpoint {base.directory}",
                found=f"tensor {spec.name!r} with digest {have[:16]}",
                expected=f"{want[:16]}, as in version {manifest.version}",
                remedy=f"give the directory that holds version {manifest.version} with --base",
            )


def _manifest(policy: Policy, plan: _Plan, published: Published) -> Manifest:
    lanes = [
        lanes_hex(add(lanes_of(old), (int(a), int(b))))
        for old, (a, b) in zip(plan.base.tensors, published.lanes, strict=True)
    ]
    return seal(policy, plan.opened, published.entries, lanes, plan.step)


def seal(
    policy: Policy, opened: Open, entries: Sequence[PartEntry], lanes: Sequence[str], step: int | None
) -> Manifest:
    """The manifest of an opened version: a function of content only, so that every publisher of it writes the same."""
    if [e.index for e in entries] != list(range(opened.parts)):
        raise CorruptInput(f"version {opened.version}", found=f"{len(entries)} parts", expected=f"{opened.parts}")
    return Manifest(
        policy_sha256=opened.policy_sha256,
        version=opened.version,
        base=opened.base,
        base_state=opened.base_state,
        state=state_digest(policy.tensors, lanes),
        tensors=tuple(lanes),
        tiling=opened.tiling,
        parts=tuple(entries),
        elements=sum(e.elements for e in entries),
        changed=sum(e.changed for e in entries),
        dense_bytes=sum(math.prod(t.shape) * dtype(t.dtype).itemsize for t in policy.tensors),
        payload_bytes=sum(e.size for e in entries),
        step=step,
    )


def _seal(
    ports: Ports, job: EncodeJob, policy: Policy, plan: _Plan, manifest: Manifest, files: Mapping[str, Sequence[int]]
) -> str:
    digest = ports.catalog.put_manifest(manifest)
    decision = ports.catalog.decision(manifest.version)
    if decision is not None and not decision.commit:
        raise Conflict(
            f"version {manifest.version}",
            found=f"a decision to abort it ({decision.reason})",
            expected="none yet",
            remedy="encode again: the next version is made from the last committed one",
        )
    fixed = {name: tuple(stat) for name, stat in files.items()}
    source = Source(plan.policy_sha256, manifest.version, manifest.state, str(job.new.resolve()), fixed)
    BaselineRecord(job.state_directory).set_pending(source)
    return digest
