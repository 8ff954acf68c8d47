"""What is typed or configured wrongly: exit code 2 or 15, what was found, what was expected, what to do; no trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Stages
from tests.cli.shell import dcr, everything
from tests.world import World, here

NEW = "model/step-000001"
SITE = ("--site", "rollout")


def _refused(world: World, code: int, words: str, *arguments: str) -> str:
    before = everything(world)
    done = here(world, *arguments)
    assert done.code == code, done.error
    assert words in done.error
    assert done.out == ""
    assert "Traceback" not in done.error
    assert everything(world) == before, "nothing is written, moved or removed"
    return done.error


def test_a_refusal_is_an_exit_code_of_the_process(stages: Stages) -> None:
    """The other tests of this file stay in this process."""
    for arguments in (("refit",), ("status", "-c", "no.yaml")):
        done = dcr(stages["sealed"], *arguments)
        assert done.code == 2 and done.out == "" and done.error == here(stages["sealed"], *arguments).error


TYPED = {
    "unknown command": ("invalid choice: 'encod'", "encod", NEW),
    "unknown option": ("unrecognized arguments: --bases", "encode", NEW, "--bases", "x"),
    "missing option": ("--site", "refit"),
    "site and checkpoint": ("not allowed with", "verify", *SITE, "--checkpoint", NEW),
    "neither": ("one of the arguments --site --checkpoint is required", "verify"),
    "negative wait": ("found '-1', expected seconds", "refit", *SITE, "--wait", "-1"),
    "endless wait": ("found 'inf', expected seconds", "refit", *SITE, "--wait", "inf"),
    "version": ("found 'one', expected a whole number", "apply", *SITE, "--version", "one"),
    "last": ("found '0', expected a whole number, 1 or more", "status", "--last", "0"),
    "no shards": ("found '0', expected a whole number, 1 or more", "synth", "m", "--shards", "0"),
}


@pytest.mark.parametrize("case", TYPED)
def test_typing_errors_show_the_usage(stages: Stages, case: str) -> None:
    words, *arguments = TYPED[case]
    assert _refused(stages["sealed"], 2, words, *arguments).startswith("usage: dcr")


MEANT = {
    "no configuration": ("no.yaml: found no such file, expected a YAML file", "status", "-c", "no.yaml"),
    "typo in a key": ("did you mean level?", "status", "--set", "codec.levl=3"),
    "value out of range": ("key codec.level: found 99, expected a whole number", "status", "--set", "codec.level=99"),
    "--set without a value": ("--set: found 'codec.level', expected KEY=VALUE", "status", "--set", "codec.level"),
    "policy name": ("key policy: found '../up'", "status", "--set", "policy=../up"),
    "policy name with a space": ("key policy: found 'my policy'", "status", "--set", "policy=my policy"),
    "site name": ("a/b", "status", "--set", "sites={a/b: {replica: r}}"),
    "unknown site": ("found 'east', expected one of ['rollout']", "refit", "--site", "east"),
    "unknown site at init": ("found '../x', expected one of ['rollout']", "init", "--site", "../x"),
    "anchor of a site": ("found --no-anchor with --site", "init", *SITE, "--no-anchor"),
    "source of a policy": ("found --from with --checkpoint", "init", "--checkpoint", NEW, "--from", NEW),
    "two ways to choose": ("--catch-up with --version", "refit", *SITE, "--catch-up", "--version", "1"),
    "fraction": ("--changed: found 2.0, expected a fraction", "synth", "m", "--changed", "2"),
    "shards that do not divide": ("found 3 and 2, expected divisors", "synth", "m", "--shards", "3"),
    "receipt": ("--receipt model: found a directory", "encode", NEW, "--receipt", "model"),
    "inspect": ("model: found a directory, expected a file", "inspect", "model"),
    "base is new": (
        "as base and as new",
        "encode",
        "model/step-000000",
        "--base",
        "model/step-000000",
        "--set",
        "trainer.state=none",
    ),
    "version of another time": ("version: found 7, expected 1", "encode", NEW, "--version", "7"),
    "abort without": ("--abort with --without", "commit", "--abort", "--without", "rollout"),
    "without whom": ("--without: found 'east', expected some of ['rollout']", "commit", "--without", "east"),
}


@pytest.mark.parametrize("case", MEANT)
def test_meant_wrongly(stages: Stages, case: str) -> None:
    words, *arguments = MEANT[case]
    error = _refused(stages["sealed"], 2, words, *arguments)
    assert error.startswith("dcr: error (UsageError, exit code 2): ")
    assert "found" in error and "expected" in error and ". Next: " in error


def _layout(stages: Stages) -> Any:
    return json.loads((stages["sealed"].path / "model/layouts/site.json").read_bytes())


def _without_rows(layout: Any) -> None:
    shard = layout["shards"][1]
    shard["datasets"] = [d for d in shard["datasets"] if d["path"] != "0/o"]


def _cut(layout: Any) -> None:
    layout["shards"][0]["datasets"][0]["shape"][0] += 1


def _renamed(layout: Any) -> None:
    layout["shards"][0]["datasets"][0]["pieces"][0]["tensor"] = "nobody"


def _escaping(layout: Any) -> None:
    layout["shards"][0]["file"] = "../up.h5"


def _shorter_piece(layout: Any) -> None:
    layout["shards"][0]["datasets"][0]["pieces"][0]["canonical"]["stop"][0] -= 1


def _unknown_key(layout: Any) -> None:
    layout["shard"] = []


def _wrong_type(layout: Any) -> None:
    layout["shards"][0]["datasets"][0]["shape"][0] = "all"


BAD = {
    "rows missing": (_without_rows, 15, "tensor 'model.layers.0.o': found no piece for"),
    "element in no piece": (_cut, 15, "each element in one piece, or declared as padding"),
    "unknown tensor": (_renamed, 15, "expected a tensor of the policy"),
    "file outside": (_escaping, 15, "expected a plain file name"),
    "extents differ": (_shorter_piece, 15, "expected the canonical extents"),
    "unknown key": (_unknown_key, 2, "unknown keys ['shard']"),
    "wrong type": (_wrong_type, 2, "shards[0].datasets[0].shape[0]: found str 'all', expected int"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_layout_file_that_does_not_fit(stages: Stages, tmp_path: Path, case: str) -> None:
    spoil, code, words = BAD[case]
    layout = _layout(stages)
    spoil(layout)
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(layout))
    sites = f"sites={{new: {{replica: replica-new, layout: {file}}}}}"
    error = _refused(stages["sealed"], code, words, "init", "--site", "new", "--set", sites)
    assert "found" in error and "expected" in error


@pytest.mark.parametrize(
    ("content", "words"), [(b'{"name": ', "no valid JSON"), (None, "No such file"), (b"[]", "list")]
)
def test_no_layout_file_at_all(stages: Stages, tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "layout.json"
    if content is not None:
        file.write_bytes(content)
    sites = f"sites={{new: {{replica: replica-new, layout: {file}}}}}"
    error = _refused(stages["sealed"], 2, words, "init", "--site", "new", "--set", sites)
    assert str(file) in error and ". Next: " in error


def test_the_trainers_layout_does_not_fit_the_shards(stages: Stages, tmp_path: Path) -> None:
    world = stages["sealed"]
    layout = json.loads((world.path / "model/layouts/trainer.json").read_bytes())
    dataset = next(d for d in layout["shards"][0]["datasets"] if d["path"] == "rotary.inv_freq")
    dataset["shape"][0] += 1
    for box in (dataset["pieces"][0]["local"], dataset["pieces"][0]["canonical"]):
        box["stop"][0] += 1
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(layout))
    change = ("--set", "policy=other", "--set", f"trainer.layout={file}", "--set", "trainer.state=elsewhere")
    error = _refused(world, 15, "rotary.inv_freq", "init", "--checkpoint", "model/step-000000", *change)
    assert "found f32 (4,)" in error and "expected f32 (5,)" in error


def test_a_site_with_another_layout_than_it_registered(stages: Stages) -> None:
    sites = "sites={rollout: {replica: replica-rollout}}"  # the trainer's own layout
    error = _refused(stages["sealed"], 13, "test/layouts/rollout.json", "init", *SITE, "--set", sites)
    assert "register a new site name" in error
