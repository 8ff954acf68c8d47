"""Some hundred mutated documents in every run; more of them in the slow test below."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.errors import CorruptInput, DcrError, GeometryError, NotReady, printable
from dcr_mpi.jsonable import MAX_DEPTH, dumps, loads
from dcr_mpi.model import Decision, Manifest, Policy, Receipt, ReplicaRecord
from tests.acts.local import Local
from tests.documents import TARGETS, Report, campaign, make_world, mutate, shards


def _fewer(plain: Any) -> None:
    """A tensor's digest less."""
    plain["tensors"].pop()


def _name_shard(name: str) -> Callable[[Any], None]:
    def change(plain: Any) -> None:
        plain["layout"]["shards"][0]["file"] = name

    return change


def check(report: Report, count: int) -> None:
    assert not report.failures, report.failures[0]
    assert report.verdicts.total() == count
    assert {v.partition(":")[0] for v in report.verdicts} == set(TARGETS)
    assert sum(n for v, n in report.verdicts.items() if v.endswith("accepted")) > count // 100
    assert {"CorruptInput", "BaseMismatch", "GeometryError"} <= set(report.refused)
    assert report.slowest < 20  # seconds: no hang, on a machine however busy
    assert report.grown < 256 << 20


def test_mutated_documents_are_refused_or_do_no_harm() -> None:
    check(campaign(seed=7, count=600), 600)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_mutated_documents(seed: int) -> None:
    check(campaign(seed, count=12_000), 12_000)


# What campaigns found, each by one change: target, change of its object, error.
FOUND: dict[str, tuple[str, Callable[[Any], object], type[DcrError]]] = {
    "a record that knows fewer tensors": ("replica record, to prepare", lambda d: d["tensors"].pop(), CorruptInput),
    "a base that has fewer": ("manifest, as a base", _fewer, CorruptInput),
    "an anchor that has fewer": ("anchor", _fewer, CorruptInput),
    "a layout that is not the replica's": ("layout, at apply", _name_shard("b.h5"), GeometryError),
    "a directory of no name": ("publisher's record", lambda d: d.update(directory="a\0b"), CorruptInput),
    "a directory of no bytes": ("publisher's record", lambda d: d.update(directory="\ud800"), CorruptInput),
    "a shard outside": ("layout, creating", _name_shard("../x.h5"), GeometryError),
    "a shard of no bytes": ("layout, creating", _name_shard("\ud800"), GeometryError),
    "a digest that is a path": ("manifest", lambda d: d.update(tiling="../" * 20 + "abcd"), CorruptInput),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_campaigns_found(case: str, tmp_path: Path) -> None:
    name, change, error = FOUND[case]
    make_world(tmp_path)
    path = tmp_path / TARGETS[name].path
    plain = json.loads(path.read_bytes())
    change(plain)
    path.unlink()
    path.write_bytes(dumps(plain))
    before = shards(tmp_path)
    with pytest.raises(error):
        TARGETS[name].act(Local(tmp_path, None, None, kernels="numpy"))
    assert shards(tmp_path) == before


def test_a_forged_version_far_ahead_costs_no_search(tmp_path: Path) -> None:
    make_world(tmp_path)
    versions = tmp_path / "store/p/versions"
    for step in range(2, 50):  # where probing looks: 1 + 2 + 4 + ... ahead
        (versions / f"{2**step - 1:06d}").mkdir(exist_ok=True)
        (versions / f"{2**step - 1:06d}/open.json").write_bytes((versions / "000003/open.json").read_bytes())
    catalog = Local(tmp_path, None, None, kernels="numpy").ports.catalog
    newest = catalog.last_opened()
    assert newest > 10**12
    with pytest.raises(NotReady, match="is opened"):
        catalog.last_committed(newest)
    with pytest.raises(NotReady, match="is opened"):
        TARGETS["policy, joining"].act(Local(tmp_path, None, None, kernels="numpy"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
RECEIPT = Receipt("applied", "s", "0" * 64, 3, 2, "1" * 64, "2" * 64, 4, "cpu", {"a": 0.5}, {"b": 7}, {"c": [1, "x"]})


@given(JSON, st.sampled_from([Policy, Manifest, Decision, Receipt, ReplicaRecord]))
def test_any_json_is_an_object_or_refused(plain: object, cls: type) -> None:
    raw = json.dumps(plain).encode("utf-8", "surrogatepass")
    with pytest.raises(CorruptInput):
        loads(cls, raw, "x")


@given(st.randoms(use_true_random=False))
def test_what_is_accepted_is_what_was_written(rng: random.Random) -> None:
    """Writing it again and reading that gives the same; what it says is in the text."""
    forged = mutate(dumps(RECEIPT), rng)
    try:
        found = loads(Receipt, forged, "x")
    except CorruptInput:
        return
    assert loads(Receipt, dumps(found), "x") == found
    said = json.loads(dumps(found))
    assert all(said[key] == value for key, value in json.loads(forged).items())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version":3', '"version":3,"version":4', "a key twice"),
        ('"version":3', '"version":' + "9" * 30, "a number of 100 bits"),
        ('"version":3', '"version":9223372036854775808', "a number of 64 bits"),
        ('"version":3', '"version":' + "9" * 5000, "no valid JSON"),
        ('"a":0.5', '"a":NaN', "infinite or none"),
        ('"a":0.5', '"a":-Infinity', "infinite or none"),
        ('"a":0.5', '"a":1e999', "infinite or none"),
        ('"x"', '{"deep":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "deeply nested"),
        ('"x"', "-9223372036854775809", "a number of 64 bits"),
        ('"x"', "[" * 100_000 + "]" * 100_000, "no valid JSON"),
    ],
)
def test_values_that_readers_take_differently_are_refused(old: str, new: str, says: str) -> None:
    text = dumps(RECEIPT).decode()
    assert loads(Receipt, text.encode(), "x") == RECEIPT and text.count(old) == 1
    with pytest.raises(CorruptInput, match=says):
        loads(Receipt, text.replace(old, new).encode(), "x")


def test_a_hundred_megabytes_in_a_name_make_a_short_message() -> None:
    text = dumps(RECEIPT).decode().replace('"act":', f'"{"x" * (100 << 20)}":')
    with pytest.raises(CorruptInput) as caught:
        loads(Receipt, text.encode(), "x")
    assert len(str(caught.value)) < 1000
    assert len(str(DcrError("y" * (1 << 20), found="z" * (1 << 20)))) < 5000


def test_messages_do_nothing_to_a_terminal() -> None:
    error = DcrError("\x1b[2Jname", found="a\rb\ud800é", remedy="c")
    assert str(error) == "\\x1b[2Jname: found a\\rb\\ud800é. Next: c"
    assert printable("plain\ntext\twith ü") == "plain\ntext\twith ü"
