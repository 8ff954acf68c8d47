"""What a new user reads first: help of every command, and the table of exit codes in the README."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest

from dcr_mpi import __version__, errors
from dcr_mpi.cli.parser import build
from tests.world import ROOT


def _commands() -> dict[str, argparse.ArgumentParser]:
    (group,) = [a for a in build()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(group.choices)


COMMANDS = _commands()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dcr_mpi", *arguments], cwd=ROOT, text=True, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_every_command(command: str) -> None:
    done = _run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: dcr {command}")
    for action in COMMANDS[command]._actions:
        assert action.help, f"{command} {action.option_strings or action.dest} has no help"
        for name in action.option_strings:
            assert name in done.stdout


def test_the_top_names_every_command_and_the_cycle() -> None:
    done = _run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\S", done.stdout, re.MULTILINE), command
    assert done.stdout.index("dcr encode") < done.stdout.index("dcr refit") < done.stdout.index("dcr commit")
    assert "Exit codes" in done.stdout
    assert _run("--version").stdout == f"dcr-mpi {__version__}\n"


def test_no_command_is_a_usage_error() -> None:
    done = _run()
    assert done.returncode == errors.UsageError.code
    assert "COMMAND" in done.stderr and done.stdout == ""


def test_the_readme_has_every_error_class_with_its_code_and_nothing_else() -> None:
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## Exit codes") :].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\w*) ?\| ?(.*) \|$", section, re.MULTILINE)
    assert {(int(code), name) for code, name, _ in rows} == {(0, "")} | {(e.code, e.__name__) for e in errors.ALL}
    assert len(rows) == 1 + len(errors.ALL), "one row each"
    assert all(meaning for _, _, meaning in rows)
