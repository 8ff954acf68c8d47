"""Whoever can write the store but has no key: every object tampered with, forged or replayed is refused, and nothing
is done with it. Real acts on a real store; what an attacker can still do is in docs/security.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dcr_mpi.acts.commit import decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.next_version import EncodeJob, find_next, open_version
from dcr_mpi.digest import sha256
from dcr_mpi.errors import BaseMismatch, CorruptInput, DcrError, NotAuthentic, UsageError
from dcr_mpi.jsonable import dumps
from dcr_mpi.signing import NO_KEYS, Keyring, Place, Signer, Trust
from dcr_mpi.signing.shared import SharedKey
from tests.acts.local import SMALL, Local
from tests.faults.test_adversary import checkpoint
from tests.signing.keys import OTHER, PUBLISHER, SITE, STRANGER, TRUSTED, rings
from tests.world import LAUNCHERS, World


def local(path: Path, kind: str, policy: str = "p") -> Local:
    trainer, site = rings(kind)
    return Local(path, None, None, kernels="numpy", keys=trainer, site_keys=site, policy=policy)


@pytest.fixture(scope="module", params=["ed25519", "hmac"])
def signed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A world with version 1 applied and version 2 committed, not applied, version 3 opened; in its store policy q too,
    of the same checkpoints and keys."""
    path = tmp_path_factory.mktemp(request.param)
    for policy in ("q", "p"):
        world = local(path, request.param, policy)
        if policy == "q":
            shutil.rmtree(path / "replica", ignore_errors=True)
        steps = [path / f"s{n}" for n in range(4)]
        for n, step in enumerate(steps):
            if not step.exists():
                checkpoint(step, n)
        world.begin(steps[0])
        world.cycle(steps[1])
        world.encode(steps[2])
        world.prepare()
        world.commit()
        if policy == "q":
            world.apply()
            shutil.rmtree(path / "replica")
            shutil.rmtree(path / "state")
    open_third(world)
    return request.param, path


def open_third(world: Local) -> None:
    catalog, policy = world.ports.catalog, world.ports.catalog.policy()[0]
    job = EncodeJob(world.path / "s3", None, world.path / "state", ("s",), SMALL)
    open_version(catalog, job, policy, find_next(catalog, job, policy))


@pytest.fixture
def world(signed: tuple[str, Path], tmp_path: Path) -> Local:
    kind, path = signed
    shutil.copytree(path, tmp_path / "w")
    return local(tmp_path / "w", kind)


def _encode(world: Local) -> object:
    return world.encode(world.path / "s3")


def _decide(world: Local) -> object:
    (world.path / "store/p/versions/000002/decision.json").unlink(missing_ok=True)
    return decide(world.ports.catalog, 2, wait_s=0)


# Which act meets an object first: kind to (key, act).
READERS: dict[str, tuple[str, Callable[[Local], object]]] = {
    "policy": ("policy.json", Local.apply),
    "policy, at the trainer": ("policy.json", _encode),
    "layout": ("layouts/s.json", Local.apply),
    "layout, at the trainer": ("layouts/s.json", _encode),
    "open": ("versions/000003/open.json", _encode),
    "manifest": ("versions/000002/manifest.json", Local.apply),
    "manifest, to prepare": ("versions/000002/manifest.json", lambda w: w.prepare(2)),
    "manifest, as a base": ("versions/000002/manifest.json", _encode),
    "prepared": ("versions/000002/prepared/s.json", _decide),
    "decision": ("versions/000002/decision.json", Local.apply),
    "decision, at the trainer": ("versions/000002/decision.json", _encode),
    "anchor": (
        "anchors/000000/manifest.json",
        lambda w: create_replica(w.site_ports, CreateJob("s", w.path / "second")),
    ),
}


def _resign(key: Signer) -> Callable[[Local, str, bytes], bytes]:
    """The true content under another signature."""
    return lambda world, at, raw: Keyring(key, [Trust(key)]).seal(Place(f"p/{at}"), raw.partition(b"\n")[0])


def _stranger(world: Local, key: str, raw: bytes) -> bytes:
    plain = json.loads(raw.partition(b"\n")[0]) | {"reason": "forged"}
    return Keyring(STRANGER, [Trust(STRANGER)]).seal(Place(f"p/{key}"), dumps(plain))


def _replay(source: Callable[[str], str]) -> Callable[[Local, str, bytes], bytes]:
    """The object that truly stands at another key."""
    return lambda world, key, raw: (world.path / "store" / source(key)).read_bytes()


def _before(key: str) -> str:
    """The same kind of object, a version earlier; an announcement, for what has no version."""
    folder, _, leaf = key.partition("/00000")
    if folder != "versions":
        return "p/versions/000001/open.json"
    return f"p/versions/00000{int(leaf[0]) - 1}{leaf[1:]}"


def _elsewhere(key: str) -> str:
    """The same key of policy q, or what is nearest to it there."""
    return f"q/{key.replace('000003', '000002')}"


def _changed(world: Local, key: str, raw: bytes) -> bytes:
    at = raw.index(b'"policy') + 2
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def _grafted(world: Local, key: str, raw: bytes) -> bytes:
    """A true signature, of another object."""
    other = (world.path / "store/p/versions/000001/open.json").read_bytes()
    return raw.partition(b"\n")[0] + b"\n" + other.partition(b"\n")[2]


ATTACKS: dict[str, Callable[[Local, str, bytes], bytes]] = {
    "unsigned": lambda world, key, raw: raw.partition(b"\n")[0],
    "an empty line for a signature": lambda world, key, raw: raw.partition(b"\n")[0] + b"\n",
    "a byte changed": _changed,
    "another's signature": _grafted,
    "forged by a stranger": _stranger,
    "signed by site t": _resign(OTHER),
    "signed by the wrong side": lambda world, key, raw: _resign(
        PUBLISHER if b"layout" in raw[:20] or "prepared" in key else SITE
    )(world, key, raw),
    "signed with a guessed key": _resign(SharedKey(b"g" * 32)),
    "replayed from another policy": _replay(_elsewhere),
    "replayed from another version": _replay(_before),
    "replayed from another kind": _replay(lambda key: "p/versions/000001/applied/s.json"),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", READERS)
def test_what_was_not_signed_for_its_place_is_refused(world: Local, kind: str, attack: str) -> None:
    key, act = READERS[kind]
    path = world.path / "store/p" / key
    true, before = path.read_bytes(), bits(world)
    forged = ATTACKS[attack](world, key, true)
    assert forged != true
    replace(path, forged)
    with pytest.raises(DcrError) as caught:
        act(world)
    assert type(caught.value) is (CorruptInput if attack == "an empty line for a signature" else NotAuthentic)
    assert key in str(caught.value)
    assert bits(world) == before, "nothing may change at the site"
    assert not (world.path / "store/p/versions/000003/manifest.json").exists(), "nothing may be sealed on it"
    replace(path, true)
    act(world)  # it was the forgery that was refused


def replace(path: Path, raw: bytes) -> None:
    path.unlink()
    path.write_bytes(raw)


def bits(world: Local) -> dict[str, str]:
    """Digest of every file of the site, but leases."""
    folders = [world.path / name for name in ("replica", "second")]
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and not p.name.startswith("lease-")]
    return {str(p): sha256(p.read_bytes()) for p in files}


def test_a_policy_is_pinned_even_without_keys(tmp_path: Path) -> None:
    """Replica and trainer remember which policy they are of: another one under its name is refused."""
    checkpoint(tmp_path / "s0", 0)
    world = Local(tmp_path, None, None, kernels="numpy")
    world.begin(tmp_path / "s0")
    world.encode(checkpoint(tmp_path / "s1", 1))
    path = tmp_path / "store/p/policy.json"
    plain = json.loads(path.read_bytes())
    plain["trainer"]["name"] = "other"
    replace(path, dumps(plain))
    later = Local(tmp_path, None, None, kernels="numpy")  # a process reads it once
    for act in (Local.prepare, Local.apply, lambda w: w.encode(tmp_path / "s1")):
        with pytest.raises(BaseMismatch, match="policy"):
            act(later)


def test_parts_are_vouched_for_by_the_manifest(world: Local) -> None:
    """A part made well in every respect but its digest in the signed manifest."""
    part = next((world.path / "store/p/versions/000002/parts").iterdir())
    other = next((world.path / "store/q/versions/000002/parts").iterdir())
    before = bits(world)
    shutil.rmtree(world.replica.work / "v000002")
    replace(part, other.read_bytes())
    with pytest.raises(CorruptInput, match="sha256"):
        world.prepare(2)
    assert {k: v for k, v in bits(world).items() if k.endswith(".h5")} == {
        k: v for k, v in before.items() if k.endswith(".h5")
    }


@pytest.fixture
def sides(tmp_path: Path) -> Local:
    """Version 1 prepared, with Ed25519 keys."""
    checkpoint(tmp_path / "s0", 0)
    world = local(tmp_path, "ed25519")
    world.begin(tmp_path / "s0")
    world.encode(checkpoint(tmp_path / "s1", 1))
    world.prepare()
    return world


def with_keys(world: Local, trainer: Keyring, site: Keyring) -> Local:
    return Local(world.path, None, None, kernels="numpy", keys=trainer, site_keys=site)


def test_a_side_without_a_key_looks_and_puts_nothing(sides: Local) -> None:
    reader = with_keys(sides, Keyring(None, TRUSTED), Keyring(None, TRUSTED))
    assert reader.ports.catalog.manifest(1) is not None
    with pytest.raises(UsageError, match="no key to sign with"):
        reader.commit()
    assert sides.ports.catalog.decision(1) is None


def test_a_site_cannot_decide_and_the_trainer_cannot_report(sides: Local) -> None:
    """Neither by its own tools, which say which key is needed, nor by putting it all the same."""
    swapped = with_keys(sides, Keyring(SITE, TRUSTED), Keyring(PUBLISHER, TRUSTED))
    with pytest.raises(UsageError, match="accepts for the publisher"):
        swapped.commit()
    careless = with_keys(sides, Keyring(SITE, [Trust(SITE), Trust(PUBLISHER)]), NO_KEYS)
    careless.commit()
    with pytest.raises(NotAuthentic, match=r"decision\.json.*of the site s"):
        sides.apply()


def test_a_site_without_keys_is_noticed_by_the_trainer(tmp_path: Path) -> None:
    """It takes what is signed, but nobody takes what it puts."""
    checkpoint(tmp_path / "s0", 0)
    trainer = rings("ed25519")[0]
    world = Local(tmp_path, None, None, kernels="numpy", keys=trainer, site_keys=NO_KEYS)
    world.begin(tmp_path / "s0")
    with pytest.raises(NotAuthentic, match=r"layouts/s\.json: found no signature"):
        world.encode(checkpoint(tmp_path / "s1", 1))


def test_keys_come_too_late_for_an_unsigned_policy(tmp_path: Path) -> None:
    checkpoint(tmp_path / "s0", 0)
    Local(tmp_path, None, None, kernels="numpy").begin(tmp_path / "s0")
    world = local(tmp_path, "ed25519")
    with pytest.raises(NotAuthentic, match=r"policy\.json: found no signature.*docs/security\.md"):
        world.encode(checkpoint(tmp_path / "s1", 1))


def test_a_run_goes_on_after_the_key_was_changed(sides: Local) -> None:
    """Versions up to the present one stay good; acts that are run again meet their own objects under the old key."""
    fresh = STRANGER
    trusted = (Trust(PUBLISHER, "publisher", until=1), Trust(fresh, "publisher"), Trust(SITE, "site s"))
    world = with_keys(sides, Keyring(fresh, trusted), Keyring(SITE, trusted))
    assert world.encode(sides.path / "s1").version == 1, "sealed under the old key"
    world.commit()
    world.apply()
    world.cycle(checkpoint(sides.path / "s2", 2))
    late = with_keys(sides, Keyring(PUBLISHER, [Trust(PUBLISHER), *trusted]), Keyring(SITE, trusted))
    late.encode(checkpoint(sides.path / "s3", 3))
    with pytest.raises(NotAuthentic, match="of the publisher until version 1"):
        world.prepare()


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["ed25519", pytest.param("hmac", marks=pytest.mark.slow)])
def test_the_command_line_with_keys_and_no_key_anywhere_else(tmp_path: Path, kind: str) -> None:
    """A whole cycle over ranks; then no file but the key files has anything of a key in it."""
    world = World(tmp_path, LAUNCHERS[sorted(LAUNCHERS)[0]])
    sides = ["trainer", "rollout"] if kind == "ed25519" else ["trainer"]
    for side in sides:
        public = world.dcr(1, "keygen", str(tmp_path / f"{side}.key"), *(["--shared"] if kind == "hmac" else []))
        with (tmp_path / "trust").open("a") as trust:
            trust.write(f"{'publisher' if side == 'trainer' else 'site rollout'} {public['public']}\n")
    (tmp_path / "trust").chmod(0o644)
    trusted = ["--set", "keys.trust=trust"] if kind == "ed25519" else []
    keys = {side: ["--set", f"keys.file={side}.key", *trusted] for side in sides}
    trainer, site = keys["trainer"], keys[sides[-1]]
    said = []

    def dcr(ranks: int, *arguments: str) -> None:
        done = world.run(ranks, *arguments)
        assert done.code == 0, done.error
        said.append(done.out + done.error)

    dcr(2, "init", "--checkpoint", str(world.synth(0)), *trainer)
    dcr(2, "init", "--site", "rollout", *site)
    dcr(3, "encode", str(world.synth(1)), *trainer)
    dcr(3, "refit", "--site", "rollout", *site)
    dcr(1, "commit", *trainer)
    dcr(3, "apply", "--site", "rollout", *site)
    dcr(2, "verify", "--site", "rollout", *site)
    dcr(1, "status", *trainer)
    if kind == "ed25519":
        dcr(2, "verify", "--site", "rollout", *trusted)
        done = world.run(2, "refit", "--site", "rollout", *trusted, "--version", "1")
        assert done.code == 0, done.error
    assert world.run(2, "status", *trainer[:2], "--set", "keys.trust=absent").code == 2
    documents = [p for p in (tmp_path / "store").rglob("*.json") if p.parent.name != "stream"]  # hints: nobody's word
    assert len(documents) > 9
    assert all(p.read_bytes().count(b"\n") == 1 for p in documents), "each has its signature"
    secrets = [(tmp_path / f"{side}.key").read_text().split()[1] for side in sides]
    for path in (p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".key"):
        raw = path.read_bytes()
        assert not any(s.encode() in raw or bytes.fromhex(s) in raw for s in secrets), path
    assert not any(s in text for s in secrets for text in said)
    forged = tmp_path / "store/test/versions/000001/decision.json"
    replace(forged, forged.read_bytes().partition(b"\n")[0])
    done = world.run(3, "apply", "--site", "rollout", "--version", "1", *site)
    assert done.code == 0, "applied already: nothing asks for the decision"
    done = world.run(1, "status", *trainer)
    assert done.code == 16 and "NotAuthentic, exit code 16" in done.error and "decision.json" in done.error
