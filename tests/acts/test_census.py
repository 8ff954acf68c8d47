"""Census: every count against the plainest statement of it in numpy, on real shards; refusals; what it prints."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from h5py import File

from dcr_mpi import synth
from dcr_mpi.acts.census import CensusJob, census
from dcr_mpi.acts.kinds import kind_of, layer_of
from dcr_mpi.cli import main
from dcr_mpi.errors import CorruptInput, GeometryError, NotReady
from dcr_mpi.jsonable import dumps
from dcr_mpi.kernels import get_kernels
from dcr_mpi.layout import tensors_of
from dcr_mpi.model import Layout

FLAT = {
    "model.layers.0.up": "bf16",
    "model.layers.1.up": "bf16",
    "model.layers.10.up": "bf16",
    "head": "f32",
    "n": "i64",
}
WORD = {"bf16": np.uint16, "f32": np.uint32, "i64": np.uint64}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command installs handlers; this process keeps its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def write(directory: Path, words: dict[str, np.ndarray], step: int = 0, file: str = "a.h5") -> Path:
    directory.mkdir(exist_ok=True)
    with File(directory / file, "w") as shard:
        shard.attrs["step"] = step
        for name, array in words.items():
            dataset = shard.create_dataset(name, data=array)
            if FLAT.get(name) == "bf16":
                dataset.attrs["dcr_dtype"] = "bf16"
            if FLAT.get(name) == "i64":
                del shard[name]
                shard.create_dataset(name, data=array.view(np.int64))
            if FLAT.get(name) == "f32":
                del shard[name]
                shard.create_dataset(name, data=array.view(np.float32))
    return directory


def pair(path: Path, seed: int = 7) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Words before and after: finite floats of every exponent, some of them moved by a few steps."""
    rng = np.random.default_rng(seed)
    before, after = {}, {}
    for name, kind in FLAT.items():
        size = 300_000 if name == "head" else 4000
        old = rng.integers(0, 1 << (8 * np.dtype(WORD[kind]).itemsize - 2), size, dtype=np.uint64).astype(WORD[kind])
        moved = rng.random(size) < 0.05
        new = np.where(moved, old + rng.integers(1, 40, size).astype(WORD[kind]), old).astype(WORD[kind])
        shape = (size // 100, 100)
        before[name], after[name] = old.reshape(shape), new.reshape(shape)
    write(path / "before", before)
    write(path / "after", after, 1)
    return before, after


def count(job: CensusJob) -> dict[str, Any]:
    result = census(job, get_kernels(), lambda total: lambda done: None)
    return json.loads(json.dumps(result))


def test_counts_are_those_of_numpy(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    found = count(CensusJob(tmp_path / "before", tmp_path / "after", bucket_bytes=1 << 20))
    differ = {n: int((before[n] != after[n]).sum()) for n in FLAT}
    assert found["steps"] == [0, 1]
    assert (found["tensors"], found["words"]) == (5, sum(a.size for a in before.values()))
    assert found["changed"] == sum(differ.values())
    kinds = {r["kind"]: (r["tensors"], r["words"], r["changed"]) for r in found["kinds"]}
    ups = [n for n in FLAT if n.endswith("up")]
    assert kinds == {
        "model.layers.*.up": (3, 12000, sum(differ[n] for n in ups)),
        "head": (1, 300_000, differ["head"]),
        "n": (1, 4000, differ["n"]),
    }
    layers = [(r["layer"], r["changed"]) for r in found["layers"]]
    assert layers == [(k, differ[f"model.layers.{k}.up"]) for k in (0, 1, 10)] + [(None, differ["head"] + differ["n"])]
    for kind in found["dtypes"]:
        old = np.concatenate([before[n].ravel() for n in FLAT if FLAT[n] == kind["dtype"]])
        new = np.concatenate([after[n].ravel() for n in FLAT if FLAT[n] == kind["dtype"]])
        hit = old != new
        assert (kind["words"], kind["changed"]) == (len(old), hit.sum())
        # All words are positive and only go up, so that a distance is a difference of words.
        steps = (new - old)[hit]
        assert kind["up"] == hit.sum()
        for row in kind["ulp"]:
            assert row["count"] == ((steps >= row["from"]) & (steps <= row["to"])).sum()
        assert sum(r["count"] for r in kind["ulp"]) == len(steps)
        masks = (old ^ new)[hit]
        for row in kind["xor"]:
            assert row["count"] == ((masks >= row["from"]) & (masks <= row["to"])).sum()
        assert sum(r["count"] for r in kind["xor"]) == len(masks)
        assert {(r["from"], r["to"]) for r in kind["xor"] if r["from"] < 256} == {(m, m) for m in masks if m < 256}
        shift = {"bf16": 7, "f32": 23, "i64": None}[kind["dtype"]]
        if shift is None:
            assert kind["exponents"] == [] and not kind["float"]
            continue
        fields = old >> old.dtype.type(shift)
        for row in kind["exponents"]:
            here = fields == row["field"]
            assert (row["words"], row["changed"]) == (here.sum(), (here & hit).sum())
            assert row["power"] == (None if row["field"] == 0 else row["field"] - 127)
        assert len(kind["exponents"]) == len(np.unique(fields))


def test_down_and_across_zero(tmp_path: Path) -> None:
    """-0.0 to +0.0 is one step up, and a step further below zero is one down."""
    old = np.array([[0x8000, 0xBF80, 0x3F80, 0x3F80, 0x3F80]], np.uint16)
    new = np.array([[0x0000, 0xBF81, 0x3F7F, 0xBF80, 0x3F80]], np.uint16)
    name = "model.layers.0.up"
    write(tmp_path / "a", {name: old})
    write(tmp_path / "b", {name: new})
    (kind,) = count(CensusJob(tmp_path / "a", tmp_path / "b"))["dtypes"]
    assert (kind["changed"], kind["up"]) == (4, 1)
    assert kind["ulp"] == [{"from": 1, "to": 1, "count": 3}, {"from": 16385, "to": 32768, "count": 1}]
    assert {(r["from"], r["to"], r["count"]) for r in kind["xor"]} == {(0x8000, 0xFFFF, 2), (1, 1, 1), (255, 255, 1)}


def test_payload_is_what_coding_everything_gives_and_a_sample_comes_near(tmp_path: Path) -> None:
    shape = synth.Shape(layers=2, hidden=256, vocabulary=1000, padded=1024, site_padded=1024, experts=4, inner=256)
    layout = synth.trainer_layout(shape, 2)
    for step in (0, 1):
        synth.write_checkpoint(tmp_path / str(step), layout, step, changed=0.02)
    job = CensusJob(tmp_path / "0", tmp_path / "1", layout, bucket_bytes=1 << 19)
    whole = count(job)
    assert whole["coded_bytes"] == whole["dense_bytes"] > 2 << 20
    assert whole["tensors"] == len(tensors_of(layout))
    spent = {r["scheme"]: r["bytes"] for r in whole["schemes"]}
    assert spent["class + ulp"] < spent["plain + ulp"] < spent["plain + xor"] < spent["plain + overwrite"]
    assert spent["plain + overwrite"] < spent["dense"] < whole["dense_bytes"]
    assert spent["auto"] <= spent["class + ulp"] * 1.01
    part = count(CensusJob(job.base, job.new, layout, sample_bytes=1 << 20, bucket_bytes=job.bucket_bytes))
    assert part["coded_bytes"] < whole["coded_bytes"] / 2
    for kind, other in zip(whole["dtypes"], part["dtypes"], strict=True):
        assert {k: kind[k] for k in ("words", "changed", "ulp", "xor", "exponents")} == {
            k: other[k] for k in ("words", "changed", "ulp", "xor", "exponents")
        }
    for kind, other in zip(whole["schemes"], part["schemes"], strict=True):
        assert other["bits_per_change"] == pytest.approx(kind["bits_per_change"], rel=0.15)


def test_a_layout_counts_tensors_once_and_without_one_datasets_as_they_lie(tmp_path: Path) -> None:
    layout = synth.trainer_layout(synth.TINY, 4)
    for step in (0, 1):
        synth.write_checkpoint(tmp_path / str(step), layout, step)
    words = sum(int(np.prod(t.shape)) for t in tensors_of(layout))
    assert count(CensusJob(tmp_path / "0", tmp_path / "1", layout))["words"] == words
    lying = sum(int(np.prod(d.shape)) for s in layout.shards for d in s.datasets)
    found = count(CensusJob(tmp_path / "0", tmp_path / "1"))
    assert found["words"] == lying > words  # padding, and norms and routers of every shard
    assert [r["layer"] for r in found["layers"]] == [0, None]


def test_equal_checkpoints_and_empty_ones(tmp_path: Path) -> None:
    pair(tmp_path)
    same = count(CensusJob(tmp_path / "before", tmp_path / "before"))
    assert same["changed"] == 0
    assert all(r["bits_per_change"] is None and r["share"] < 0.001 for r in same["schemes"])
    for side in "ab":
        write(tmp_path / side, {"head": np.zeros((0, 3), np.uint32)})
    nothing = count(CensusJob(tmp_path / "a", tmp_path / "b"))
    assert (nothing["words"], nothing["kinds"], nothing["dtypes"]) == (0, [], [])


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    before, _ = pair(tmp_path)
    short = {**before, "head": before["head"][:-1]}
    fewer = {n: a for n, a in before.items() if n != "head"}
    wider = {**before, "head": before["head"].astype(np.uint64)}
    for name, words in (("short", short), ("fewer", fewer), ("wider", wider)):
        other = write(tmp_path / name, words)
        for base, new in ((tmp_path / "before", other), (other, tmp_path / "before")):
            with pytest.raises(GeometryError, match="head"):
                count(CensusJob(base, new))
    with pytest.raises(NotReady):
        count(CensusJob(tmp_path / "before", tmp_path / "nowhere"))
    write(tmp_path / "more", before)
    write(tmp_path / "more", {"x": np.zeros(3, np.uint8)}, file="b.h5")
    with pytest.raises(GeometryError, match=re.escape("b.h5")):
        count(CensusJob(tmp_path / "before", tmp_path / "more"))
    write(tmp_path / "more", {"x": np.zeros(3, np.uint8)}, step=5, file="b.h5")
    with pytest.raises(CorruptInput, match="step"):
        count(CensusJob(tmp_path / "more", tmp_path / "more"))
    with pytest.raises(GeometryError, match="head"):
        layout = synth.trainer_layout(synth.TINY, 1)
        count(CensusJob(tmp_path / "before", tmp_path / "after", Layout("t", (_renamed(layout),))))


def _renamed(layout: Layout) -> Any:
    return type(layout.shards[0])("a.h5", layout.shards[0].datasets)


def test_names() -> None:
    assert layer_of("model.layers.12.experts.3.down") == 12
    assert layer_of("blocks/7/w") == 7
    assert layer_of("layer_4_up") == 4
    assert layer_of("conv1.weight") is None and layer_of("head") is None
    assert kind_of("model.layers.12.experts.3.down") == "model.layers.*.experts.*.down"
    assert kind_of("conv1.0") == "conv1.*"


class _Page(HTMLParser):
    """Well-formed, and nothing in it comes from elsewhere."""

    void = frozenset({"meta", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.bars = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & {name for name, _ in attrs}
        values = dict(attrs)
        if tag == "rect":
            self.bars += 1
            assert 0 <= float(values["width"] or "x") <= 420
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        # A paragraph ends where the next block begins.
        while self.open[-1] == "p" != tag:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = pair(tmp_path)
    page = tmp_path / "new" / "page.html"
    assert main(["census", str(tmp_path / "before"), str(tmp_path / "after"), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    floats = [n for n in FLAT if FLAT[n] != "i64"]
    changed, words = sum(int((before[n] != after[n]).sum()) for n in floats), sum(before[n].size for n in floats)
    assert out.startswith(f"census: {changed / words:.3%} of {words} float words changed")
    for text in ("class + ulp", "model.layers.*.up", "2^-1", "bf16: XOR masks", "units in the last place"):
        assert text in out
    parser = _Page()
    parser.feed(page.read_text())
    assert parser.open == [] and parser.bars > 40
    assert "model.layers.*.up" in parser.text and f"{changed / words:.3%}" in "".join(parser.text)

    assert main(["census", str(tmp_path / "before"), str(tmp_path / "after"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["act"] == "census" and found["changed"] >= changed


def test_the_command_takes_a_layout_and_declared_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, word in (("a", 0x3F80), ("b", 0x3F81)):
        write(tmp_path / side, {"w": np.full((2, 64), word, np.uint16)})
    where = ["census", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]
    assert main(where) == 0
    assert [t["dtype"] for t in json.loads(capsys.readouterr().out)["dtypes"]] == ["u16"]
    assert main([*where, "--dtype", "w*=bf16"]) == 0
    assert [t["dtype"] for t in json.loads(capsys.readouterr().out)["dtypes"]] == ["bf16"]
    for more, hinted in (((), True), (("--dtype", "w*=bf16"), False)):
        assert main([*where[:-1], *more]) == 0
        assert ("if they are floats, say so" in capsys.readouterr().out) == hinted
    layout = synth.trainer_layout(synth.TINY, 2)
    (tmp_path / "layout.json").write_bytes(dumps(layout))
    assert main([*where, "--layout", str(tmp_path / "layout.json")]) == NotReady.code  # its shards are not there
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layout", "nowhere.json"], "no such file"),
        (["--dtype", "bf16"], "PATTERN=DTYPE"),
        (["--dtype", "w=bf17"], "bf17"),
        (["--html", "."], "a directory"),
    ],
)
def test_mistyped_commands(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["census", "a", "b", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""


def test_wrong_directories_are_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is not there, one of other tensors, a layout of other files: the remedy names what to name."""
    pair(tmp_path)
    write(tmp_path / "other", {"x": np.zeros(8, np.uint16)})
    (tmp_path / "layout.json").write_bytes(dumps(synth.trainer_layout(synth.TINY, 2)))
    before = str(tmp_path / "before")
    for more, code, said in (
        ([str(tmp_path / "nowhere")], NotReady.code, "name directories of finished checkpoints"),
        ([str(tmp_path / "after"), "--layout", str(tmp_path / "layout.json")], NotReady.code, "the layout that they"),
        ([str(tmp_path / "other")], GeometryError.code, "name two checkpoints of one run"),
    ):
        assert main(["census", before, *more]) == code
        told = capsys.readouterr().err
        assert said in told and "wait" not in told and "dcr init" not in told


@pytest.mark.parametrize(("pattern", "fits"), [("modle.*=bf16", False), ("storage:u16=f16", False), ("n=i64", True)])
def test_a_pattern_that_fits_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, fits: bool
) -> None:
    pair(tmp_path)
    code = main(["census", str(tmp_path / "before"), str(tmp_path / "after"), "--dtype", pattern])
    told = capsys.readouterr()
    assert code == (0 if fits else 2)
    assert fits or (f"dtype {pattern}" in told.err and "head" in told.err)
