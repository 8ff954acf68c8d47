"""From the configuration to the acts' jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..acts.apply import ApplyJob
from ..acts.next_version import EncodeJob
from ..acts.ports import Ports
from ..acts.prepare_plan import PrepareJob
from ..acts.publish import CodecSettings
from ..config import Config, SiteConfig
from ..direct import Inlet, Outlet, Reach, Serving, spool_folder
from ..errors import CorruptInput, UsageError
from ..events import Events
from ..jsonable import loads
from ..model import Layout


def codec_settings(config: Config) -> CodecSettings:
    c = config.codec
    return CodecSettings(
        c.positions,
        c.values,
        c.level if c.entropy == "zstd" else None,
        c.block,
        int(c.bucket_mib * (1 << 20)),
        int(c.part_mib * (1 << 20)),
        c.self_check,
        c.link_mib_s * (1 << 20) if c.link_mib_s is not None else None,
    )


def read_layout(path: Path | None) -> Layout | None:
    """A layout file: the JSON of :class:`dcr_mpi.model.Layout`. It is written by hand, so all its faults are usage."""
    if path is None:
        return None
    try:
        return loads(Layout, path.read_bytes(), f"layout file {path}")
    except CorruptInput as error:
        raise UsageError(
            error.what, found=error.found, expected=error.expected, remedy="docs/operations.md shows how to make one"
        ) from None
    except OSError as error:
        raise UsageError(
            f"layout file {path}",
            found=error.strerror or str(error),
            expected="a readable file",
            remedy="correct trainer.layout or the site's layout in the configuration",
        ) from None


def site_of(config: Config, name: str) -> SiteConfig:
    if name not in config.sites:
        raise UsageError(
            "site",
            found=repr(name),
            expected=f"one of {sorted(config.sites)}",
            remedy="add it under sites: in the configuration",
        )
    return config.sites[name]


def poll_s(config: Config) -> tuple[float, float]:
    """First and longest pause between looks into the store, in seconds."""
    return config.commit.poll_s[0], config.commit.poll_s[1]


@contextmanager
def log_of_its_own(ports: Ports, config: Config, act: str, subject: str) -> Iterator[Ports]:
    """The same ports with another log, for one act of several in a process: its seconds and bytes are that act's."""
    where, rank, size = config.events.dir, ports.comm.rank, ports.comm.size
    with Events(where, act, subject, rank, size, config.events.progress_s) as events:
        yield dataclasses.replace(ports, events=events)


def encode_job(config: Config, new: Path, base: Path | None = None, number: int | None = None) -> EncodeJob:
    t = config.trainer
    settings = codec_settings(config)
    return EncodeJob(new, base, t.state, t.sites, settings, t.step_attribute, t.dtypes, number, t.anchor_every)


def prepare_job(config: Config, site: str, number: int | None, wait: float) -> PrepareJob:
    poll = poll_s(config)
    return PrepareJob(site, site_of(config, site).replica, number, wait, poll, config.relay.degree, config.relay.window)


def inlet_of(config: Config) -> Inlet | None:
    """A site's end of the direct relay."""
    d = config.direct
    reach = Reach(d.connect_timeout_s, d.idle_s, d.retry_s, d.deadline_s)
    return Inlet(reach) if config.relay.transport == "direct" else None


def outlet_of(config: Config) -> Outlet:
    """A trainer rank's end of the direct relay."""
    d = config.direct
    span = (d.ports[0], d.ports[1]) if d.ports is not None else None
    hold, spool = int(d.hold_mib * (1 << 20)), d.spool or config.trainer.state
    return Outlet(Serving(d.listen, d.advertise, span, d.store, hold, spool, d.idle_s, d.connections))


@contextmanager
def serving(ports: Ports, config: Config) -> Iterator[Ports]:
    """The same ports with the trainer's end of the direct relay, where that is configured."""
    if config.relay.transport != "direct":
        yield ports
        return
    outlet = outlet_of(config)
    spool_folder(outlet.serving.spool)
    try:
        yield dataclasses.replace(ports, outlet=outlet)
    finally:
        outlet.close()


def apply_job(config: Config, site: str, number: int | None, wait_s: float = 0.0) -> ApplyJob:
    poll = poll_s(config)
    return ApplyJob(site, site_of(config, site).replica, number, wait_s, poll, config.apply.verify == "full")
