"""encode: what changed between the last committed version and a new checkpoint, sealed as the next version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, fingerprint
from ..digest import add, lanes_hex, lanes_of
from ..errors import Conflict, CorruptInput
from ..model import Manifest, Open, Policy, Receipt
from ..wire import PartHeader
from .anchor import anchor_due, publish_anchor
from .baseline import BaselineRecord, Source
from .kinds import kind_rows
from .next_version import EncodeJob, Next, Standing, find_next, find_standing, open_version
from .parts import PartBuilder
from .ports import Ports
from .publish import CodecSettings, encoded_receipt, publish, seal
from .state import check_checkpoint, check_lanes, check_manifest, checkpoint_lanes
from .tiling import inventories, load_policy, load_tiling, placement


def encode(ports: Ports, job: EncodeJob) -> Receipt:
    """Encode the next version and seal its manifest. Every rank calls it; running it again is safe.

    Nothing is announced before both checkpoints are known to be whole and to fit, and the base to be the base.

    Raises
    ------
    BaseMismatch
        The base directory does not hold the last committed version.
    Conflict
        Another publisher sealed this version with other content, or it is decided already.
    CorruptInput, GeometryError, NotReady
        A shard is missing, incomplete, changed while it was read, or does not fit the policy.
    """
    catalog = ports.catalog
    with ports.events.stage("plan"):
        policy = load_policy(ports)
        standing = ports.agree(Standing, "standing version", lambda: find_standing(catalog, job))
        if standing.manifest is not None:
            return encoded_receipt(ports, standing.manifest, standing.digest)
        following = ports.agree(Next, "next version", lambda: find_next(catalog, job, policy))
        check_manifest(policy, following.base)
    known = inventories(ports)
    with (
        Checkpoint(Path(following.base_directory), policy.trainer, job.step_attribute, job.dtypes, known) as base,
        Checkpoint(job.new, policy.trainer, job.step_attribute, job.dtypes, known) as new,
    ):
        with ports.events.stage("check"):
            # Before anything is listed: what is written from here on is noticed.
            before, base_before = fingerprint(job.new, policy.trainer), fingerprint(base.directory, policy.trainer)
            step = check_checkpoint(ports, new)
            check_checkpoint(ports, base)
            if not following.base_known:
                _check_base(ports, base, policy, following.base)
        with ports.events.stage("plan"):
            opened = ports.agree(
                Open, "opened version", lambda: open_version(catalog, job, policy, following, ports.known)
            )
        manifest, kinds = make_version(ports, policy, opened, following.base, base, new, job.codec, step)
    for directory, then in ((job.new, before), (base.directory, base_before)):
        if fingerprint(directory, policy.trainer) != then:
            raise CorruptInput(
                f"checkpoint {directory}",
                found="shards that changed while they were read",
                expected="a finished checkpoint",
                remedy="write it to another name and rename it when it is whole, then encode again",
            )
    with ports.events.stage("seal"):
        digest = ports.once("manifest", lambda: _seal(ports, job, manifest, before).encode()).decode()
    _anchor_base(ports, job, policy, following)
    return encoded_receipt(ports, manifest, digest, kinds=kinds)


def make_version(
    ports: Ports,
    policy: Policy,
    opened: Open,
    before: Manifest,
    base: Checkpoint,
    new: Checkpoint,
    codec: CodecSettings,
    step: int | None,
) -> tuple[Manifest, list[dict[str, Any]]]:
    """All parts of an opened version, in the store, and the manifest that is to seal it. Every rank calls it.

    ``before`` is the manifest of the base. The rows are those of :func:`.kinds.kind_rows`.

    Raises
    ------
    VerifyFailed, Conflict
        As :meth:`PartBuilder.build` and :func:`publish`.
    """
    with ports.events.stage("plan"):
        tiling = load_tiling(ports, opened.tiling, policy, opened.policy_sha256, opened.parts)
    header = PartHeader.bound(opened.policy_sha256, opened.tiling, opened.version, opened.base)
    trainer = placement(ports, "trainer", policy.trainer, policy)
    builder = PartBuilder(
        policy, tiling, base, new, header, codec.scheme, ports.kernels, codec.bucket_bytes, codec.self_check, trainer
    )
    published = publish(ports, builder, policy, tiling, opened.version)
    lanes = [
        lanes_hex(add(lanes_of(old), (int(a), int(b))))
        for old, (a, b) in zip(before.tensors, published.lanes, strict=True)
    ]
    kinds = kind_rows(policy.tensors, published.counts)
    if ports.comm.rank == 0:
        ports.events.note(kinds=kinds)
    return seal(policy, opened, published.entries, lanes, step), kinds


def _anchor_base(ports: Ports, job: EncodeJob, policy: Policy, following: Next) -> None:
    """Once the new version is out, and sites are at work on it: the anchor of its base, where one is due."""
    if anchor_due(ports, following.base, job.anchor_every):
        directory = Path(following.base_directory)
        with (
            ports.events.stage("anchor"),
            Checkpoint(directory, policy.trainer, job.step_attribute, job.dtypes) as base,
        ):
            publish_anchor(ports, policy, following.policy_sha256, following.base, base, job.codec)


def _check_base(ports: Ports, base: Checkpoint, policy: Policy, manifest: Manifest) -> None:
    lanes = checkpoint_lanes(ports, base, policy.tensors, "check base")
    remedy = f"give the directory that holds version {manifest.version} with --base"
    check_lanes(f"base checkpoint {base.directory}", policy.tensors, lanes, manifest, remedy)


def _seal(ports: Ports, job: EncodeJob, manifest: Manifest, files: Mapping[str, Sequence[int]]) -> str:
    fixed = {name: tuple(stat) for name, stat in files.items()}
    source = Source(manifest.policy_sha256, manifest.version, manifest.state, str(job.new.resolve()), fixed)
    record = BaselineRecord(job.state_directory)
    record.set_pending(source)  # first: who is killed just after the manifest must know it for its own
    try:
        digest = ports.catalog.put_manifest(manifest)
    except Conflict:
        record.drop_pending()
        raise
    decision = ports.catalog.decision(manifest.version)
    if decision is not None and not decision.commit:
        raise Conflict(
            f"version {manifest.version}",
            found=f"a decision to abort it ({decision.reason})",
            expected="none yet",
            remedy="encode again: the next version is made from the last committed one",
        )
    return digest
