"""The next version of a policy: its number, its base, and what it is cut for, found in the store and opened there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..catalog import Catalog, check_policy
from ..checkpoint import fingerprint
from ..digest import content_sha256
from ..errors import BaseMismatch, Conflict, NotReady, UsageError
from ..layout import check_layout, cut_parts, make_tiles
from ..model import Layout, Manifest, Open, Policy, Tiling
from .baseline import BaselineRecord, Source, is_sealed
from .publish import CodecSettings


@dataclass(frozen=True)
class EncodeJob:
    """What to encode.

    ``new`` and ``base`` are checkpoint directories (``base`` None: the one that the publisher's record names);
    ``sites`` are the registered sites that the tiles are cut for; ``state_directory`` holds the publisher's record.
    ``anchor_every``: once the version is sealed, publish its base as an anchor if that many versions have none.
    """

    new: Path
    base: Path | None
    state_directory: Path
    sites: Sequence[str]
    codec: CodecSettings = field(default_factory=CodecSettings)
    step_attribute: str = "step"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None
    anchor_every: int = 0


@dataclass(frozen=True)
class Standing:
    """A version that is sealed and decided already; ``manifest`` None where there is none."""

    digest: str = ""
    manifest: Manifest | None = None


@dataclass(frozen=True)
class Next:
    """The version to make, and its base; ``base_known``: the publisher's record vouches for the directory's bits."""

    policy_sha256: str
    version: int
    base: Manifest
    base_directory: str
    base_known: bool


def find_standing(catalog: Catalog, job: EncodeJob) -> Standing:
    """The last committed version, where it was made of these very shards: a re-run.

    Shards that another publisher went on from are none: brought in again, they are a new version.
    """
    record = BaselineRecord(job.state_directory)
    record.settle(catalog)
    known = record.baseline()
    if known is None or known.version == 0 or job.version not in (None, known.version):
        return Standing()
    policy, policy_sha = catalog.policy()
    if known.policy_sha256 != policy_sha or not _is_source(known, job.new, policy):
        return Standing()
    manifest, digest = catalog.last_committed(last_decided(catalog, known.version))
    return Standing(digest, manifest) if manifest.version == known.version else Standing()


def last_decided(catalog: Catalog, hint: int) -> int:
    """The newest version with a decision; only the newest that was opened can lack one."""
    newest = catalog.last_opened(hint)
    return newest if catalog.decision(newest) is not None else newest - 1


def _is_source(source: Source, directory: Path, policy: Policy) -> bool:
    """Whether a record is about this directory as it is now."""
    if Path(source.directory) != directory.resolve() or not directory.is_dir():
        return False
    return source.files == {name: tuple(stat) for name, stat in fingerprint(directory, policy.trainer).items()}


def find_next(catalog: Catalog, job: EncodeJob, policy: Policy) -> Next:
    """Which version comes next, and from which base. Puts nothing.

    Raises
    ------
    BaseMismatch
        The publisher's record is of another policy.
    UsageError
        The job asks for another version, or nobody knows a directory that holds the base.
    """
    record = BaselineRecord(job.state_directory)
    _, policy_sha = catalog.policy()
    record.settle(catalog)
    known = record.baseline()
    if known is not None:
        check_policy(known.policy_sha256, policy_sha, f"the publisher's record in {job.state_directory}")
    version = last_decided(catalog, known.version if known is not None else 0) + 1
    if job.version is not None and job.version != version:
        raise UsageError(
            "version",
            found=job.version,
            expected=f"{version}, the next of this policy",
            remedy="leave it out, or look at dcr status",
        )
    sealed = record.pending()
    mine = sealed is not None and sealed.version == version and is_sealed(catalog, sealed)
    # The same directory may have been written again with the same words, by a step that was repeated: sealing tells.
    if sealed is not None and mine and Path(sealed.directory) != job.new.resolve():
        raise Conflict(
            f"version {version}",
            found=f"sealed from {sealed.directory} and undecided",
            expected=f"a decision before {job.new} is encoded",
            remedy="dcr commit once the sites have prepared it, or dcr commit --abort",
        )
    base, _ = catalog.last_committed(version - 1)
    directory, trusted = _base_directory(job, policy, policy_sha, base, known)
    return Next(policy_sha, version, base, str(directory), trusted)


def open_version(
    catalog: Catalog, job: EncodeJob, policy: Policy, following: Next, known: dict[str, Any] | None = None
) -> Open:
    """Announce the version, or join the announcement that stands: an earlier try's, another publisher's.

    ``known``: of :class:`Ports`; a tiling is cut once.

    Raises
    ------
    BaseMismatch, Conflict
        A site is registered for another policy; the version was opened from another base.
    """
    policy_sha, version, base = following.policy_sha256, following.version, following.base
    opened = catalog.opened(version)
    sites = {name: catalog.layout(name) for name in sorted(job.sites)}
    if opened is not None:
        try:
            have = catalog.contents.tiling(opened.tiling).layouts
        except NotReady:  # dcr gc took an old one in the moment before it was named
            for site in sites.values():
                check_layout(site.layout, policy.tensors)
            again = make_tiling(policy, policy_sha, {n: s.layout for n, s in sites.items()}, job.codec)
            if content_sha256(again) != opened.tiling:
                raise
            catalog.contents.put_tiling(again)
            have = again.layouts
        want = {n: content_sha256(s.layout) for n, s in sites.items()}
        # What is sealed goes on as it was cut, whichever sites are listed by now.
        if have != want and catalog.manifest(version) is None:
            raise Conflict(
                f"version {version}",
                found=f"opened for sites {sorted(have)}" + (" with other layouts" if set(have) == set(want) else ""),
                expected=f"sites {sorted(want)}, as trainer.sites says",
                remedy="abort it (dcr commit --abort) and encode again: the next version is cut for the right sites",
            )
    else:
        for name, site in sites.items():
            if site.policy_sha256 != policy_sha:
                raise BaseMismatch(
                    f"layout of site {name!r}",
                    found=f"policy {site.policy_sha256[:16]}",
                    expected=f"{policy_sha[:16]}",
                    remedy="register the site again under a new name",
                )
        known = {} if known is None else known
        names = " ".join(f"{name} {content_sha256(site.layout)}" for name, site in sites.items())
        key = f"cut for {names} {job.codec.block} {job.codec.part_bytes}"
        if key not in known:
            known[key] = make_tiling(policy, policy_sha, {n: s.layout for n, s in sites.items()}, job.codec)
        tiling = known[key]
        digest = catalog.contents.put_tiling(tiling)
        opened = catalog.put_open(Open(policy_sha, version, base.version, base.state, digest, len(tiling.cuts)))
    if (opened.policy_sha256, opened.base, opened.base_state) != (policy_sha, base.version, base.state):
        raise Conflict(
            f"version {version}",
            found=f"opened from base {opened.base} {opened.base_state[:16]}",
            expected=f"base {base.version} {base.state[:16]}",
            remedy="abort it: dcr commit --abort",
        )
    return opened


def make_tiling(policy: Policy, policy_sha: str, sites: Mapping[str, Layout], codec: CodecSettings) -> Tiling:
    """The tiling of a policy for these sites."""
    tiles = make_tiles(policy, sites)
    digests = {name: content_sha256(layout) for name, layout in sites.items()}
    return Tiling(
        policy_sha, digests, codec.block, tiles, cut_parts(tiles, policy.tensors, codec.block, codec.part_bytes)
    )


def _base_directory(
    job: EncodeJob, policy: Policy, policy_sha: str, base: Manifest, known: Source | None
) -> tuple[Path, bool]:
    """Where the base is, and whether the record already vouches for its bits."""
    mine = known if known is not None and holds(known, policy_sha, base) else None
    directory = job.base if job.base is not None else Path(mine.directory) if mine is not None else None
    if directory is None:
        raise UsageError(
            "base checkpoint",
            found=f"no record of a directory that holds version {base.version}",
            expected="one",
            remedy="name it with --base; its state digest is checked",
        )
    directory = directory.resolve()
    if directory == job.new.resolve():
        raise UsageError(
            "checkpoints",
            found=f"{directory} as base and as new",
            expected="two directories",
            remedy="keep the baseline until the next version is committed",
        )
    if not directory.is_dir():
        raise BaseMismatch(
            f"baseline of version {base.version}",
            found=f"no directory {directory}{' (as recorded)' if job.base is None else ''}",
            expected="its shards",
            remedy="put it back, or name another copy with --base; its bits are checked",
        )
    return directory, mine is not None and _is_source(mine, directory, policy)


def holds(source: Source, policy_sha: str, version: Manifest) -> bool:
    """Whether a record is about this very version."""
    return (source.policy_sha256, source.version, source.state) == (policy_sha, version.version, version.state)
