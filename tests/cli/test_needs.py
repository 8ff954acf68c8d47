"""``--needs``: no act begins on the word of a receipt that the store does not bear out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import KIND, Quick, Setup, Stages
from tests.cli.shell import everything
from tests.world import LAUNCHERS

Plain = dict[str, Any]


@pytest.fixture(scope="module")
def chain(stages: Stages, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    """One version, every act with its receipt, each after the receipts of the acts before it."""
    world = stages.copy("begun", tmp_path_factory.mktemp("needs") / "w").inside()
    step = str(world.synth(1))
    world.dcr(1, "init", "--site", "rollout", "--receipt", "r/created")
    for name, arguments in {
        "encoded": ("encode", step, "--version", "1", "--needs", "r/created"),
        "prepared": ("refit", "--site", "rollout", "--needs", "r/encoded"),
        "committed": ("commit", "--needs", "r/encoded", "--needs", "r/prepared"),
        "applied": ("apply", "--site", "rollout", "--needs", "r/committed", "--needs", "r/prepared"),
        "verified": ("verify", "--site", "rollout", "--needs", "r/applied"),
        "current": ("refit", "--site", "rollout", "--needs", "r/verified"),
    }.items():
        world.dcr(1, *arguments, "--receipt", f"r/{name}")
    return Quick(world.path, LAUNCHERS[KIND])


def test_a_chain_of_true_receipts(chain: Quick) -> None:
    acts = {path.name: json.loads(path.read_bytes())["act"] for path in (chain.path / "r").iterdir()}
    assert acts.pop("created").startswith("there already")
    assert acts.pop("current") == "up to date"
    assert all(name == act for name, act in acts.items()) and len(acts) == 5
    assert chain.here("status", *(x for name in acts for x in ("--needs", f"r/{name}"))).code == 0


def _set(key: str, value: object) -> Callable[[Plain], Any]:
    return lambda told: told.update({key: value})


LIES: dict[str, tuple[str, Callable[[Plain], Any], int, str]] = {
    "another manifest": ("encoded", _set("manifest_sha256", "0" * 64), 13, "manifest 0000000000000000 of version 1"),
    "another state": ("verified", _set("state", "f" * 64), 13, "state ffffffffffffffff of version 1"),
    "a version to come": ("applied", _set("version", 7), 10, "manifest of version 7: found none yet"),
    "another policy": ("prepared", _set("policy_sha256", "a" * 64), 12, "policy aaaaaaaaaaaaaaaa"),
    "another site": ("prepared", _set("subject", "elsewhere"), 10, "prepared by site 'elsewhere'"),
    "a decision to come": ("committed", _set("version", 7), 10, "a commit of version 7, of which the store knows"),
    "no version": ("applied", lambda told: told.pop("version"), 11, "version None"),
    "a version that is none": ("applied", _set("version", True), 11, "version True"),
    "no digest": ("current", lambda told: told.pop("state"), 11, "no digest"),
    "no act": ("committed", _set("act", 3), 11, "act 3"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_receipt_that_the_store_does_not_bear_out(chain: Quick, tmp_path: Path, lie: str) -> None:
    name, change, code, found = LIES[lie]
    told = json.loads((chain.path / "r" / name).read_bytes())
    change(told)
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(told))
    before = everything(chain)
    refused = chain.here("commit", "--needs", f"r/{name}", "--needs", str(forged))
    assert refused.code == code and found in refused.error, refused.error
    assert everything(chain) == before


@pytest.mark.parametrize(
    ("content", "code", "found"),
    [
        (None, 10, "no such file"), (b"", 11, "no valid JSON"), (b'{"act": "enc', 11, "no valid JSON"),
        (b"[1]", 11, "list of 1"), (b'{"act": "a", "act": "b"}', 11, "a key twice"),
    ],
)  # fmt: skip
def test_what_is_no_receipt(chain: Quick, tmp_path: Path, content: bytes | None, code: int, found: str) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    refused = chain.here("refit", "--site", "rollout", "--needs", str(path))
    assert refused.code == code and found in refused.error, refused.error


def test_a_receipt_of_a_version_that_was_aborted(stages: Stages, tmp_path: Path) -> None:
    world: Setup = stages.copy("sealed", tmp_path / "w").inside()
    world.dcr(1, "refit", "--site", "rollout", "--receipt", "r/prepared")
    world.dcr(1, "commit", "--abort", "bad batch")
    refused = world.run(1, "apply", "--site", "rollout", "--needs", "r/prepared")
    assert refused.code == 13 and "version 1, which was aborted (bad batch)" in refused.error


@pytest.mark.mpi
def test_all_ranks_end_with_the_code(chain: Quick) -> None:
    refused = chain.run(3, "refit", "--site", "rollout", "--needs", "nowhere.json")
    assert refused.code == 10 and "no such file" in refused.error
