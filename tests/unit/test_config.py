"""Configuration: what is taken, what is refused and in which words, and that page, example and schema agree."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import typing
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dcr_mpi.config import Config, load
from dcr_mpi.errors import UsageError
from dcr_mpi.schema import fill, schema, walk
from dcr_mpi.store import S3Options
from dcr_mpi.yamltext import parse

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "configs" / "example.yaml"
SMALL = "policy: p\nstore: {url: store}\nsites: {a: {replica: ra}, b: {replica: rb, layout: b.json}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dcr.yaml"
    path.write_text(SMALL)
    return path


def message(path: Path | None, **overrides: str) -> str:
    """The message of the UsageError that these overrides (``__`` for a dot) bring about."""
    with pytest.raises(UsageError) as caught:
        load(path, {key.replace("__", "."): text for key, text in overrides.items()})
    assert caught.value.code == 2
    return str(caught.value)


def test_paths_are_relative_to_the_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = load(file, {"events.dir": "logs", "trainer.state": "/abs/state"})
    assert config.store.url == str(tmp_path / "store")
    assert config.sites["a"].replica == tmp_path / "ra" and config.sites["b"].layout == tmp_path / "b.json"
    assert config.events.dir == tmp_path / "logs" and config.trainer.state == Path("/abs/state")
    assert load(file, {"store.url": "s3://bucket/prefix"}).store.url == "s3://bucket/prefix"


def test_a_relative_file_name(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path("dcr.yaml")) == load(file)


def test_ca_bundle_is_relative_to_the_file_too(file: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    assert load(file, {"store.s3.ca_bundle": "ca.pem"}).store.s3.ca_bundle == str(tmp_path / "ca.pem")
    assert "ca_bundle" in message(file, store__s3__ca_bundle="missing.pem")


def test_overrides_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(None, {"policy": "p", "store.url": "s", "sites": "{eu.west: {replica: r}}"})
    assert (config.policy, config.store.url, config.sites["eu.west"].replica) == (
        "p",
        str(tmp_path / "s"),
        tmp_path / "r",
    )


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3.0), ("1e3", 1000.0), ("2E-1", 0.2), ("0.5", 0.5), ("0", 0.0), ("1.5e+2", 150.0)]
)
def test_numbers(file: Path, text: str, value: float) -> None:
    found = load(file, {"commit.wait_s": text}).commit.wait_s
    assert found == value and type(found) is float


def test_whole_numbers_are_ints(file: Path) -> None:
    level = load(file, {"codec.level": "3.0"}).codec.level
    assert level == 3 and type(level) is int


def test_frozen(file: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load(file).policy = "q"  # type: ignore[misc]


def test_loading_one_does_not_change_the_defaults_of_the_next(file: Path) -> None:
    before = load(file)
    load(file, {"trainer.sites": "[a, b]", "trainer.dtypes": "{x: bf16}", "codec.level": "9"})
    load(file).trainer.dtypes["leak"] = "f32"
    assert load(file) == before


REFUSED: dict[str, tuple[str, str, str]] = {
    # id: key, YAML text, what the message must hold
    "typo": ("codec.levl", "3", "codec.levl.*unknown key.*did you mean level"),
    "typo of a section": ("codek.level", "3", "key codek.*did you mean codec"),
    "key in the wrong place": ("level", "3", "key level.*did you mean codec.level"),
    "unknown": ("zzzz", "3", "key zzzz.*expected one of policy, store"),
    "unknown inside a site": ("sites.a.replca", "x", "sites.a.replca.*did you mean replica"),
    "text for a number": ("codec.level", "high", "codec.level.*found 'high'.*whole number, at least 1 and at most 22"),
    "fraction": ("codec.level", "1.5", "codec.level.*1.5.*whole number"),
    "too large": ("codec.level", "23", "codec.level.*found 23.*at most 22"),
    "null": ("codec.level", "", "codec.level.*found null.*whole number"),
    "bool for a number": ("codec.level", "true", "codec.level.*found true"),
    "number for a bool": ("codec.self_check", "1", "codec.self_check.*found 1, expected true or false"),
    "not one of": ("codec.values", "xr", "codec.values.*'xr'.*one of ulp, xor, overwrite, mixed"),
    "no power of two": ("codec.block", "100000", "codec.block.*100000.*power of two"),
    "block too small": ("codec.block", "32", "codec.block.*found 32.*at least 64"),
    "zero": ("codec.part_mib", "0", "codec.part_mib.*found 0.*more than 0"),
    "nan": ("commit.wait_s", ".nan", "commit.wait_s.*nan.*finite"),
    "infinite": ("commit.wait_s", ".inf", "commit.wait_s.*inf.*finite"),
    "pauses the wrong way": ("commit.poll_s", "[2, 1]", "commit.poll_s.*shorter pause first"),
    "one pause": ("commit.poll_s", "[2]", "commit.poll_s.*list of 2, each a number, more than 0"),
    "ports the wrong way": ("direct.ports", "[7063, 7000]", "direct.ports.*lower port first"),
    "a port too large": ("direct.ports", "[7000, 70000]", "direct.ports.1.*at most 65535"),
    "a URL for a host": ("direct.advertise", "https://gate", "direct.advertise.*host's name or address"),
    "no transport": ("relay.transport", "tcp", "relay.transport.*'tcp'.*one of store, direct"),
    "no list": ("trainer.sites", "a", "trainer.sites.*found 'a'.*list"),
    "twice in a list": ("trainer.sites", "[a, a]", "trainer.sites.*none twice"),
    "a path for a name": ("trainer.sites", "[../a]", "trainer.sites.0.*'../a'.*letter or digit first"),
    "a path for a site": ("sites", "{../a: {replica: x}}", "sites.*'../a'.*letter or digit first"),
    "a path for a policy": ("policy", "a/b", "policy.*'a/b'"),
    "long policy": ("policy", "p" * 65, "policy.*1 to 64"),
    "policy that looks like a date": ("policy", "2024-01-01", "policy.*datetime.date.*in quotes"),
    "impossible date": ("policy", "2024-13-41", "month"),
    "site that looks like false": ("sites", "{no: {replica: x}}", "key False is a bool: put it in quotes"),
    "site without replica": ("sites", "{c: {}}", "sites.c.replica.*found nothing.*add it"),
    "shared replica": ("sites.b.replica", "x/../ra", "sites.b.replica.*directory of site a"),
    "section is a scalar": ("codec", "3", "key codec.*found 3.*section"),
    "section is null": ("codec", "null", "key codec.*found null.*section"),
    "key below a scalar": ("policy.x.y", "1", "policy is no section"),
    "dtype": ("trainer.dtypes", "{'*': bf17}", "trainer.dtypes.*bf17.*bf16"),
    "home": ("events.dir", "~/logs", "events.dir.*'~/logs'.*not expanded"),
    "variable": ("sites.a.replica", "${SCRATCH}/r", "sites.a.replica.*SCRATCH.*not expanded"),
    "variable in the store": ("store.url", "$HOME/store", "store.url.*not expanded"),
    "empty URL": ("store.url", "''", "store.url.*found ''.*not empty"),
    "no ranks": ("ranks", "0", "key ranks.*found 0.*at least 1"),
    "endpoint": ("store.s3.endpoint", "localhost:9000", "endpoint.*localhost:9000.*http"),
    "key twice": ("codec", "{level: 1, level: 2}", "'level' is here twice"),
    "no YAML": ("codec", "{level: ", "value of codec, line 1"),
    "a Python object": ("policy", "!!python/object/apply:os.getcwd []", "could not determine a constructor"),
}


@pytest.mark.parametrize(("key", "text", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(file: Path, key: str, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(file, {key: text})
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize("key", ["secret_key", "access_key_id", "aws_session_token", "password"])
def test_secrets_have_no_key_and_are_not_repeated(file: Path, key: str) -> None:
    says = message(file, **{f"store__s3__{key}": "hunter2"})
    assert "AWS chain" in says and "hunter2" not in says


def test_several_problems_are_counted(file: Path) -> None:
    assert "2 more to mend" in message(file, codec__level="99", codec__values="x", ranks="0")


FILES = {
    "empty": (b"", "empty file"),
    "a list": (b"- 1\n", "found list"),
    "key twice": (b"policy: a\nstore: {url: x}\npolicy: b\n", "line 3, column 1.*'policy' is here twice"),
    "tab": (b"policy: a\nstore:\n\turl: x\n", "line 3"),
    "not UTF-8": (b"policy: \xff\xfe\n", "YAML in UTF-8"),
    "two documents": (b"policy: a\n---\npolicy: b\n", "single document"),
    "missing": (b"store: {url: x}\n", "key policy.*found nothing.*add it"),
    "deep": (b"a: " + b"[" * 5000, "YAML"),
}


@pytest.mark.parametrize(("data", "says"), FILES.values(), ids=FILES)
def test_refused_file(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(data)
    found = message(path)
    assert str(path) in found and re.search(says, found, re.DOTALL), found


def test_no_file(tmp_path: Path) -> None:
    assert re.search("none.yaml.*no such file.*example.yaml", message(tmp_path / "none.yaml"))
    assert "found a directory" in message(tmp_path)


def test_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "merge.yaml"
    path.write_text(
        "policy: p\nstore: {url: s}\nsites:\n  a: &a {replica: ra, layout: l}\n  b: {<<: *a, replica: rb}\n"
    )
    site = load(path).sites["b"]
    assert (site.replica.name, site.layout and site.layout.name) == ("rb", "l")


# -- page, example, schema and dataclasses say the same ---------------------------------------------------------------


def lookup(plain: Any, key: str) -> Any:
    for name in key.split("."):
        plain = next(iter(plain.values())) if name == "<name>" else plain[name]
    return plain


def test_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    shipped = resources.files("dcr_mpi.schema") / "config.schema.yaml"
    assert parse(shipped.read_bytes(), "schema") == schema(), "whichever parser reads it"


@pytest.mark.parametrize("key", [key for key, _ in walk()])
def test_every_key_is_described_and_shown(key: str) -> None:
    node = dict(walk())[key]
    assert node.get("description") or key.endswith("<name>"), "no description in the schema"
    assert re.search(rf"^\| `{re.escape(key)}` \|", (ROOT / "configs/README.md").read_text(), re.MULTILINE), (
        "not in the README"
    )
    shown = lookup(yaml.safe_load(EXAMPLE.read_text()), key)
    if "default" in node and "properties" not in node and key not in ("trainer.sites", "trainer.dtypes", "sites"):
        assert shown == node["default"], "the example shows another default"


def test_the_page_documents_no_key_that_is_gone() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "configs/README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(key for key, _ in walk())


def test_the_page_states_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", (ROOT / "configs/README.md").read_text(), re.MULTILINE))
    for key, node in walk():
        if node.get("default", {}) not in ({}, []):
            assert yaml.safe_load(rows[key].strip("` ")) == node["default"], key
        elif key in ("policy", "store", "store.url", "sites.<name>.replica"):
            assert rows[key] == "required"


@pytest.mark.parametrize("path", [EXAMPLE, ROOT / "configs/demo.yaml"], ids=lambda p: p.name)
def test_shipped_configurations_load(path: Path) -> None:
    assert load(path).sites["rollout"].replica.is_absolute()


def test_sections_are_closed() -> None:
    for key, node in [("(top)", schema()), *walk()]:
        if "properties" in node:
            assert node["additionalProperties"] is False, key


def test_dataclasses_have_the_schemas_keys() -> None:
    def fields(kind: Any, prefix: str) -> list[str]:
        out = []
        for name, inner in typing.get_type_hints(kind).items():
            out.append(prefix + name)
            if dataclasses.is_dataclass(inner):
                out += fields(inner, f"{prefix}{name}.")
            elif typing.get_origin(inner) is dict and dataclasses.is_dataclass(typing.get_args(inner)[1]):
                out += [f"{prefix}{name}.<name>", *fields(typing.get_args(inner)[1], f"{prefix}{name}.<name>.")]
        return out

    assert sorted(fields(Config, "")) == sorted(key for key, _ in walk())


def test_defaults_of_the_store_are_those_of_its_options(file: Path) -> None:
    assert load(file).store.s3 == S3Options()


def test_fill_leaves_the_wrong_type_to_the_validator() -> None:
    assert fill(schema(), {"codec": 3})["codec"] == 3 and fill(schema(), [1]) == [1]


def test_reading_a_configuration_loads_no_heavy_library() -> None:
    heavy = ["boto3", "h5py", "mpi4py", "numba", "cupy"]
    code = "import sys, dcr_mpi.config, dcr_mpi.events, dcr_mpi.cli.parser\n"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
