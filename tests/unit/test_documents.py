"""Some hundred mutated documents in every run; more of them in the slow test below."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.errors import CorruptInput, DcrError, printable
from dcr_mpi.jsonable import MAX_DEPTH, dumps, loads
from dcr_mpi.model import Decision, Manifest, Policy, Receipt, ReplicaRecord
from tests.documents import TARGETS, Report, campaign, mutate


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
