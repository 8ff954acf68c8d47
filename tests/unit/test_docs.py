"""Documents that name tests, files and commands name ones that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`((?:[a-z_0-9]+/)+test_[a-z_0-9]+\.py)(?:::(test_[a-z_0-9]+))?`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("configs/*.md")])


@cache
def _tests(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_reliability_names_tests_that_are_there() -> None:
    """A situation whose test was renamed or dropped is a promise that nobody keeps."""
    named = TEST.findall((ROOT / "docs/reliability.md").read_text())
    assert len(named) > 50
    for file, test in named:
        path = ROOT / file if file.startswith("tests/") else ROOT / "tests" / file
        assert path.is_file(), file
        assert not test or test in _tests(path), f"{file}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), f"{link} in {page.relative_to(ROOT)}"
