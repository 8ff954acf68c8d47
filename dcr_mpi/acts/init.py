"""init: the birth of a policy at the trainer (version 0), and the registration of a site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..catalog import check_name
from ..checkpoint import Checkpoint, default_layout, fingerprint
from ..digest import sha256
from ..errors import UsageError
from ..jsonable import dumps, loads
from ..layout import check_layout, tensors_of
from ..model import Decision, Layout, Manifest, Open, Policy, Receipt, SiteLayout
from .anchor import publish_anchor
from .baseline import BaselineRecord, Source
from .next_version import make_tiling
from .ports import Ports
from .publish import CodecSettings, seal
from .state import check_checkpoint, checkpoint_lanes


@dataclass(frozen=True)
class InitJob:
    """``checkpoint`` becomes version 0. ``layout`` None: each dataset holds the whole tensor of its path."""

    checkpoint: Path
    state_directory: Path
    layout: Layout | None = None
    codec: CodecSettings = field(default_factory=CodecSettings)
    anchor: bool = True
    step_attribute: str = "step"
    dtypes: Mapping[str, str] = field(default_factory=dict)


def init_policy(ports: Ports, job: InitJob) -> Receipt:
    """Register a policy and its version 0, committed, and publish the anchor that sites create replicas from.

    Every rank calls it; running it again with the same checkpoint changes nothing.

    Raises
    ------
    Conflict
        The policy exists with other tensors, another layout, or another version 0.
    """
    raw = ports.once("policy", lambda: dumps(_policy(ports, job)))
    policy, policy_sha = loads(Policy, raw, "policy.json"), sha256(raw)
    with Checkpoint(job.checkpoint, policy.trainer, job.step_attribute, job.dtypes) as checkpoint:
        before = fingerprint(job.checkpoint, policy.trainer)
        check_checkpoint(ports, checkpoint)
        manifest = version_zero(ports, policy, policy_sha, checkpoint, job.codec, job.anchor)
    if ports.comm.rank == 0:
        _record(ports, job, manifest, before)
    digest = sha256(dumps(manifest))
    ports.comm.barrier("version 0")
    return ports.receipt(
        "init", "trainer", manifest, digest, detail={"tensors": len(policy.tensors), "anchor": job.anchor}
    )


def version_zero(
    ports: Ports,
    policy: Policy,
    policy_sha: str,
    checkpoint: Checkpoint,
    codec: CodecSettings,
    anchor: bool,
    keep: Callable[[Manifest], None] = lambda _: None,
) -> Manifest:
    """Register a policy, and a checkpoint's words as its version 0, which is committed. Every rank calls it.

    ``keep`` is called with the manifest before anybody can see it.

    Raises
    ------
    Conflict
        As :func:`init_policy`.
    """
    with ports.events.stage("state"):
        lanes = checkpoint_lanes(ports, checkpoint, policy.tensors, "state of version 0")
    tiling_sha = ports.once("tiling", lambda: _register(ports, policy, policy_sha, codec).encode()).decode()
    opened = Open(policy_sha, 0, None, "", tiling_sha, 0)
    manifest = seal(policy, opened, (), lanes, None)
    keep(manifest)

    def sealed() -> bytes:  # first of all: an anchor must not stand for a version that another checkpoint became
        ports.catalog.put_open(opened)
        return ports.catalog.put_manifest(manifest).encode()

    digest = ports.once("manifest of version 0", sealed).decode()
    if anchor:
        publish_anchor(ports, policy, policy_sha, manifest, checkpoint, codec)
    if ports.comm.rank == 0:
        ports.catalog.put_decision(Decision(policy_sha, 0, True, digest, {}, "version 0"))
    return manifest


def _policy(ports: Ports, job: InitJob) -> Policy:
    layout = job.layout or default_layout("trainer", job.checkpoint, job.step_attribute, job.dtypes)
    tensors = tensors_of(layout)
    check_layout(layout, tensors)
    if not tensors:
        raise UsageError(f"checkpoint {job.checkpoint}", found="no tensors", expected="at least one dataset")
    return Policy(ports.catalog.name, tensors, layout)


def _register(ports: Ports, policy: Policy, policy_sha: str, codec: CodecSettings) -> str:
    ports.catalog.put_policy(policy)
    return ports.catalog.contents.put_tiling(make_tiling(policy, policy_sha, {}, codec))


def _record(ports: Ports, job: InitJob, manifest: Manifest, files: Mapping[str, list[int]]) -> None:
    record = BaselineRecord(job.state_directory)
    if record.baseline() is None or ports.catalog.last_opened() == 0:
        fixed = {name: tuple(stat) for name, stat in files.items()}
        record.set_baseline(Source(manifest.policy_sha256, 0, manifest.state, str(job.checkpoint.resolve()), fixed))


def register_site(ports: Ports, site: str, layout: Layout | None) -> SiteLayout:
    """Register a site's layout (None: the trainer's own), checked against the policy. Rank 0's work; put-once.

    Raises
    ------
    GeometryError
        The layout does not hold every tensor wholly.
    Conflict
        The site is registered with another layout.
    """
    policy, policy_sha = ports.catalog.policy()
    check_name("site", site)
    chosen = Layout(site, (layout or policy.trainer).shards)
    check_layout(chosen, policy.tensors)
    registration = SiteLayout(site, policy_sha, chosen)
    ports.catalog.put_layout(registration)
    return registration
