"""Where keys come from: files that nobody else can read, or the environment; and no message that shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcr_mpi.cli import main
from dcr_mpi.config import load
from dcr_mpi.errors import NotAuthentic, UsageError
from dcr_mpi.signing import NO_KEYS, Place, generate, load_keyring

PLACE = Place("p/policy.json")
HEX = "0123456789abcdef" * 4


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_pair_from_keygen(tmp_path: Path) -> None:
    public = generate(tmp_path / "key", shared=False)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    trust = write(tmp_path / "trust", f"# who may sign what\npublisher  {public}   # the trainer\n\n", 0o644)
    trainer, reader = load_keyring(tmp_path / "key", trust, {}), load_keyring(None, trust, {})
    assert reader.open(PLACE, trainer.seal(PLACE, b"{}")) == b"{}"
    from_environment = load_keyring(None, trust, {"DCR_KEY": (tmp_path / "key").read_text()})
    assert from_environment.seal(PLACE, b"{}") == trainer.seal(PLACE, b"{}")


def test_a_shared_key_and_its_successor(tmp_path: Path) -> None:
    assert generate(tmp_path / "old", shared=True) == "" == generate(tmp_path / "new", shared=True)
    old = load_keyring(tmp_path / "old", None, {})
    both = write(tmp_path / "both", (tmp_path / "new").read_text() + (tmp_path / "old").read_text())
    assert load_keyring(both, None, {}).open(PLACE, old.seal(PLACE, b"{}")) == b"{}"
    sealed = load_keyring(both, None, {}).seal(PLACE, b"{}")
    assert load_keyring(tmp_path / "new", None, {}).open(PLACE, sealed) == b"{}", "the first one signs"
    with pytest.raises(NotAuthentic):
        old.open(PLACE, sealed)


def test_nothing_configured() -> None:
    assert load_keyring(None, None, {}) is NO_KEYS


def test_keygen_never_writes_over_a_key(tmp_path: Path) -> None:
    path = write(tmp_path / "key", "precious")
    with pytest.raises(UsageError, match="never written over"):
        generate(path, shared=True)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", f"ed25519-secret {HEX}\n", mode)
    with pytest.raises(UsageError, match=f"mode {mode:03o}, open to others.*mode 600.*chmod 600"):
        load_keyring(path, None, {})


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_trust_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "trust", f"publisher ed25519 {HEX}\n", mode)
    with pytest.raises(UsageError, match=f"mode {mode:03o}.*chmod go-w"):
        load_keyring(None, path, {})


BAD_KEYS = {
    "empty": "",
    "only a comment": "# nothing\n",
    "no kind": HEX,
    "another kind": f"rsa {HEX}",
    "public": f"ed25519 {HEX}",
    "too short": f"ed25519-secret {HEX[2:]}",
    "too long": f"ed25519-secret {HEX}00",
    "short shared": f"hmac-sha256 {HEX[:32]}",
    "capitals": f"ed25519-secret {HEX.upper()}",
    "words": f"ed25519-secret {HEX} now",
    "two that sign": f"ed25519-secret {HEX}\ned25519-secret {HEX[::-1]}",
    "mixed": f"ed25519-secret {HEX}\nhmac-sha256 {HEX}",
    "no text": "\xff" + HEX,
    "PEM": f"-----BEGIN PRIVATE KEY-----\n{HEX}\n-----END PRIVATE KEY-----\n",
    "huge": "#" * (2 << 20),
}


@pytest.mark.parametrize("text", BAD_KEYS.values(), ids=BAD_KEYS)
def test_malformed_keys_are_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    trust = write(tmp_path / "trust", f"publisher ed25519 {HEX}\n", 0o644)
    for source in ("file", "environment"):
        with pytest.raises(UsageError) as caught:
            if source == "file":
                load_keyring(write(tmp_path / "key", text), trust, {})
            else:
                load_keyring(None, trust, {"DCR_KEY": text})
        assert HEX[:8] not in str(caught.value).lower() and HEX[::-1][:8] not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        f"publisher {HEX}",
        f"publisher ed25519-secret {HEX}",
        f"ed25519 {HEX}",
        f"site ed25519 {HEX}",
        f"site ../x ed25519 {HEX}",
        f"publisher ed25519 {HEX} until",
        f"publisher ed25519 {HEX} until -1",
        f"publisher ed25519 {HEX} until {10**16}",
        f"publisher ed25519 {HEX[1:]}",
        f"anybody ed25519 {HEX}",
    ],
)
def test_malformed_trust(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "trust", f"publisher ed25519 {HEX}\n{line}\n", 0o644)
    with pytest.raises(UsageError, match="line 2"):
        load_keyring(None, path, {})


def test_what_contradicts_itself(tmp_path: Path) -> None:
    one = write(tmp_path / "one", f"ed25519-secret {HEX}")
    shared = write(tmp_path / "shared", f"hmac-sha256 {HEX}")
    trust = write(tmp_path / "trust", f"publisher ed25519 {HEX}", 0o644)
    for file, trusted, environment, says in (
        (one, trust, {"DCR_KEY": one.read_text()}, "found keys.file and DCR_KEY"),
        (one, None, {}, "keys.trust: found nothing, beside an Ed25519 key"),
        (shared, trust, {}, "with a shared key leave keys.trust out"),
        (tmp_path / "none", trust, {}, "key file .*none: found No such file"),
        (one, tmp_path / "none", {}, "trust file .*none: found No such file"),
        (tmp_path, trust, {}, "key file .*: found Is a directory"),
    ):
        with pytest.raises(UsageError, match=says):
            load_keyring(file, trusted, environment)


def test_an_empty_trust_file_trusts_nobody(tmp_path: Path) -> None:
    """It is no way to turn verification off."""
    ring = load_keyring(None, write(tmp_path / "trust", "# nobody\n", 0o644), {})
    with pytest.raises(NotAuthentic):
        ring.open(PLACE, b"{}")


KEY_IN_THE_YAML = {
    "a key for a path": ("keys.file", f"ed25519-secret {HEX}"),
    "a shared one": ("keys.file", f"hmac-sha256 {HEX}"),
    "bare digits": ("keys.file", f"'{HEX}'"),
    "base64": ("keys.trust", "'c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U='"),
    "PEM": ("keys.file", f"'-----BEGIN PRIVATE KEY-----\\n\\n{HEX}'"),
    "instead of the section": ("keys", f"hmac-sha256 {HEX}"),
    "in a list": ("keys.file", f"[{HEX}]"),
    "under another name": ("keys.secret", f"'{HEX}'"),
    "as a name": ("keys", f"{{ {HEX}: x }}"),
}


@pytest.mark.parametrize(("key", "text"), KEY_IN_THE_YAML.values(), ids=KEY_IN_THE_YAML)
def test_a_key_in_the_configuration_is_refused_and_not_shown(key: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(None, {"policy": "p", "store.url": "s", key: text})
    message = str(caught.value)
    assert "key" in message and "c2VjcmV0" not in message
    assert HEX[:16] not in message, message


def test_ordinary_paths_are_no_keys(tmp_path: Path) -> None:
    for text in ("keys/trainer", f"/scratch/{HEX}/key", "/home/somebody/projects/refit/keys/of/the/trainer"):
        assert load(None, {"policy": "p", "store.url": "s", "keys.file": text}).keys.file == Path.cwd() / text


def test_keygen_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", str(tmp_path / "key")]) == 0
    said = capsys.readouterr()
    secret = (tmp_path / "key").read_text().split()[1]
    assert said.out.startswith("ed25519 ") and len(said.out.split()[1]) == 64 and secret not in said.out + said.err
    assert main(["keygen", "--shared", str(tmp_path / "shared"), "--json"]) == 0
    secret = (tmp_path / "shared").read_text().split()[1]
    said = capsys.readouterr()
    assert secret not in said.out + said.err and '"public": ""' in said.out
    assert main(["keygen", str(tmp_path / "key")]) == 2
