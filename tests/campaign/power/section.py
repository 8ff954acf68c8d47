"""States that lost power may leave at every point of a command; from each, the product reaches base or target."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.arena import Place
from tests.campaign.disturb import Bench, on_all_cores, spread, thorough
from tests.campaign.power.disk import Disk, Keep, Write
from tests.campaign.power.recording import OPTIONS, Call, parse
from tests.campaign.report import Report

# What all volatile changes share in the states that are always tried; random ones come on top.
_FIXED = ("nothing kept", "names kept", "bytes kept", "store lost", "store kept")
_RANDOM = 3


@dataclass(frozen=True)
class Recording:
    """A command as it was recorded: its calls, and the world that it began in."""

    scene: str
    calls: list[Call]
    place: Path


@dataclass(frozen=True)
class Order:
    """Which changes had become durable when the power went: after ``calls`` calls, by a rule or by chance."""

    scene: str
    calls: int
    rule: str
    last: bool  # the command had ended, and had said so
    onwards: bool  # followed to the end of its version

    def __str__(self) -> str:
        return f"{self.scene}, after {self.calls} calls, {self.rule}"


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """Up to ``budget`` states (None: all) over all scenes; states that are equal count once."""
    recordings = {name: record(bench, name) for name in bench.scenes}
    orders = spread([order for recording in recordings.values() for order in orders_of(recording)], budget)
    for name in bench.scenes:
        bench.undisturbed(name)  # here once, and not in every process
    seen: set[str] = set()

    def work(order: Order) -> tuple[Order, str, str]:
        return (order, *lose_power(bench, recordings[order.scene], order))

    for order, state, wrong in on_all_cores(work, orders, bench.workers):
        if state not in seen:
            seen.add(state)
            report.count("power_loss_orders", "power", order.scene)
        if wrong:
            report.fail(f"power lost in {order}", wrong)


def record(bench: Bench, name: str, lie: int = 0) -> Recording:
    """Record a scene's command; its ``lie``-th fsync (by thread) answers well and does nothing."""
    scene = bench.scenes[name]
    log = bench.arena.root / f"power-{name}-{lie}"
    options = ("-o", str(log), *OPTIONS, *(("-e", f"inject=fsync:retval=0:when={lie}") if lie else ()))
    with bench.arena.copy(scene.stage) as place:
        done = place.run(scene.argv, options)
        assert done.code == 0, f"{name}: exit code {done.code}\n{done.text}"
        here = place.path
    calls = parse(log, here)
    log.unlink()
    return Recording(name, calls, here)


def orders_of(recording: Recording) -> Iterator[Order]:
    """All points of a recording at which the volatile state is another, with every rule."""
    number = 0
    changing = [
        k + 1 for k, call in enumerate(recording.calls) if call.name not in ("open", "seek") or "CREAT" in call.flags
    ]
    for calls in changing:
        last = calls == changing[-1]
        for rule in (*_FIXED, *(f"chance {k}" for k in range(_RANDOM))):
            yield Order(recording.scene, calls, rule, last, thorough(number))
            number += 1


def lose_power(bench: Bench, recording: Recording, order: Order) -> tuple[str, str]:
    """Build one state and recover from it: a name for the state, and what is wrong, "" where nothing is.

    A command that had ended is not run again: what it said was done must be there.
    """
    scene = bench.scenes[order.scene]
    disk = disk_before(bench, recording)
    for call in recording.calls[: order.calls]:
        disk.apply(call)
    target = bench.arena.root / "copies" / f"power-{hashlib.sha256(str(order).encode()).hexdigest()[:16]}"
    keep, tear = _rule(order)
    disk.build(target, keep, tear)
    try:
        place = Place(target)
        state = hashlib.sha256(repr((order.scene, order.last, sorted(_raw(target).items()))).encode()).hexdigest()
        wrong = bench.check_stopped(place, order.scene)
        if not wrong:
            wrong = bench.check_onwards(place, scene) if order.last else bench.check_again(place, scene, order.onwards)
        return state, wrong
    finally:
        shutil.rmtree(target)


def disk_before(bench: Bench, recording: Recording) -> Disk:
    """The disk that a recording began with, under the path that it was made at."""
    disk = Disk(bench.arena.stage(bench.scenes[recording.scene].stage).path)
    disk.root = str(recording.place)
    return disk


def _raw(root: Path) -> dict[str, bytes]:
    """Every file's bytes and every directory, by path."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else b"" for p in root.rglob("*")}


def _rule(order: Order) -> tuple[Keep, Callable[[Write], Write]]:
    """What survives, and how much of it."""
    match order.rule:
        case "nothing kept":
            return lambda *_: False, _whole
        case "names kept":
            return lambda kind, _: kind == "name", _whole
        case "bytes kept":
            return lambda kind, _: kind == "bytes", _whole
        case "store lost":
            return lambda _, path: not path.startswith("/store/"), _whole
        case "store kept":
            return lambda _, path: path.startswith("/store/"), _whole
    dice = random.Random(str(order))
    odds = dice.choice((0.2, 0.5, 0.8))

    def torn(write: Write) -> Write:
        cut = len(write.data) if dice.random() < 0.7 else dice.randint(0, len(write.data))
        return dataclasses.replace(write, data=write.data[:cut])

    return lambda *_: dice.random() < odds, torn


def _whole(write: Write) -> Write:
    return write
