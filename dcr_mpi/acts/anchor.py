"""anchor: a committed version whole, coded against nothing: what new, lagging and damaged replicas are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..checkpoint import Checkpoint
from ..digest import content_sha256, lanes_hex
from ..errors import Conflict, CorruptInput, UsageError
from ..jsonable import dumps
from ..model import Manifest, Open, Policy, Receipt
from ..wire import PartHeader
from .baseline import BaselineRecord
from .chain import Link
from .next_version import holds, make_tiling
from .parts import PartBuilder
from .ports import Ports
from .publish import CodecSettings, encoded_receipt, publish, seal
from .state import check_checkpoint, check_lanes
from .tiling import load_policy


@dataclass(frozen=True)
class AnchorJob:
    """What to publish: the last committed version, or ``version``.

    ``checkpoint`` is a directory in the trainer's layout that holds it; None: the one on the publisher's record.
    """

    checkpoint: Path | None
    state_directory: Path
    version: int | None = None
    codec: CodecSettings = field(default_factory=CodecSettings)
    step_attribute: str = "step"
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    policy_sha256: str
    manifest: Manifest
    directory: str


def anchor(ports: Ports, job: AnchorJob) -> Receipt:
    """Publish an anchor of a committed version. Every rank calls it; one that is there already is left alone.

    Raises
    ------
    UsageError
        The version is not committed, or nobody knows a directory that holds it.
    BaseMismatch
        The directory holds other bits than the version's; nothing was sealed.
    """
    policy = load_policy(ports)
    plan = ports.agree(_Plan, "plan", lambda: _plan(ports, job))
    with Checkpoint(Path(plan.directory), policy.trainer, job.step_attribute, job.dtypes) as checkpoint:
        check_checkpoint(ports, checkpoint)
        publish_anchor(ports, policy, plan.policy_sha256, plan.manifest, checkpoint, job.codec)
    link = ports.agree(Link, "anchor", lambda: _sealed(ports, plan.manifest.version))
    return encoded_receipt(ports, link.manifest, link.sha256, "anchored")


def _sealed(ports: Ports, version: int) -> Link:
    found = ports.catalog.manifest(version, anchor=True)
    assert found is not None
    return Link(*found)


def _plan(ports: Ports, job: AnchorJob) -> _Plan:
    catalog, record = ports.catalog, BaselineRecord(job.state_directory)
    _, policy_sha = catalog.policy()
    record.settle(catalog)
    if job.version is None:
        manifest, _ = catalog.last_committed(catalog.last_opened())
    else:
        decision = catalog.decision(job.version)
        if decision is None or not decision.commit:
            raise UsageError(
                f"anchor of version {job.version}",
                found="no commit of it" if decision is None else f"an abort ({decision.reason})",
                expected="a committed version",
                remedy="leave --version out: the last committed one is taken",
            )
        manifest, _ = catalog.sealed(job.version)
    known = record.baseline()
    directory = job.checkpoint
    if directory is None and known is not None and holds(known, policy_sha, manifest):
        directory = Path(known.directory)
    if directory is None:
        raise UsageError(
            "checkpoint",
            found=f"no record of a directory that holds version {manifest.version}",
            expected="one",
            remedy="name it with --checkpoint; its state digest is checked",
        )
    return _Plan(policy_sha, manifest, str(directory.resolve()))


def publish_anchor(
    ports: Ports, policy: Policy, policy_sha: str, manifest: Manifest, checkpoint: Checkpoint, codec: CodecSettings
) -> None:
    """Code every word of ``checkpoint`` and seal it as the anchor of the version that ``manifest`` describes.

    One that is sealed already is left alone. It is cut for no site, so that a replica of any layout can be filled
    from it.

    Raises
    ------
    BaseMismatch
        The words are not the version's.
    """
    version = manifest.version
    if ports.once("anchor", lambda: dumps(_stands(ports, manifest))) == b"true":
        return
    tiling = make_tiling(policy, policy_sha, {}, codec)
    digest = content_sha256(tiling)
    opened = Open(policy_sha, version, None, "", digest, len(tiling.cuts))
    if ports.comm.rank == 0:
        ports.catalog.contents.put_tiling(tiling)
        standing = ports.catalog.put_open(opened, anchor=True)
        if standing != opened:
            raise Conflict(
                f"anchor of version {version}",
                found=f"one begun in {standing.parts} parts, with other codec settings",
                expected=f"{opened.parts} parts, as configured",
                remedy="finish it with the settings that it was begun with (codec.block, codec.part_mib)",
            )
    header = PartHeader.bound(policy_sha, digest, version, None)
    builder = PartBuilder(
        policy,
        tiling,
        None,
        checkpoint,
        header,
        codec.scheme,
        ports.kernels,
        codec.bucket_bytes,
        codec.self_check,
    )
    published = publish(ports, builder, policy, tiling, version, anchor=True)
    lanes = [lanes_hex((int(a), int(b))) for a, b in published.lanes]
    remedy = f"give the directory that holds version {version}; it must not change meanwhile"
    check_lanes(f"checkpoint {checkpoint.directory}", policy.tensors, lanes, manifest, remedy)
    if ports.comm.rank == 0:
        ports.catalog.put_manifest(seal(policy, opened, published.entries, lanes, manifest.step), anchor=True)
    ports.comm.barrier("anchor sealed")


def _stands(ports: Ports, manifest: Manifest) -> bool:
    """Whether an anchor of the version is sealed already."""
    found = ports.catalog.manifest(manifest.version, anchor=True)
    if found is not None:
        check_anchor(found[0], manifest)
    return found is not None


def check_anchor(anchor: Manifest, version: Manifest) -> None:
    """Raise CorruptInput for an anchor that is not of the version that it is under."""
    if anchor.state != version.state:
        raise CorruptInput(
            f"anchor of version {version.version}",
            found=f"state {anchor.state[:16]}",
            expected=f"{version.state[:16]}, as the version's manifest says",
            remedy="it was made of another checkpoint and serves nobody: publish one of a later version (dcr anchor), "
            "or fill replicas with dcr init --from DIR",
        )


def anchor_due(ports: Ports, base: Manifest, every: int) -> bool:
    """Whether the last ``every`` versions up to ``base`` have no anchor (0: never). Every rank calls it.

    One is due too where the parts of the base were to be copied to the store and are not there: whoever served them was
    killed before, and a site that missed them has no other way.
    """
    copied = ports.outlet is not None and ports.outlet.store != "never"
    if copied and ports.once("copy of the base", lambda: dumps(ports.catalog.has_copy(base))) == b"false":
        every = 1
    versions = range(base.version, max(-1, base.version - every), -1)

    def look() -> bool:
        return not any(ports.catalog.has_anchor(version) for version in versions)

    return every > 0 and ports.once("anchor due", lambda: dumps(look())) == b"true"
