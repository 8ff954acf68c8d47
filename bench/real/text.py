"""Text to learn from, without a download: functions of the installed packages, as (docstring, source) pairs."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

_FILES, _MIN, _MAX = 400, 40, 2000


def functions(seed: int, wanted: int) -> list[tuple[str, str]]:
    """``wanted`` pairs of a function's docstring and its source without it, drawn from site-packages."""
    files = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))
    draw = random.Random(seed)
    draw.shuffle(files)
    pairs: list[tuple[str, str]] = []
    for file in files[: 20 * _FILES]:
        try:
            source = file.read_text("utf-8")
            if len(source) < 200_000:
                pairs += _of(source)
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        if len(pairs) >= 2 * wanted:
            break
    if len(pairs) < wanted:
        raise SystemExit(f"bench.real: {len(pairs)} documented functions installed here, {wanted} needed")
    draw.shuffle(pairs)
    return pairs[:wanted]


def _of(source: str) -> list[tuple[str, str]]:
    out = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        words = ast.get_docstring(node)
        body = "\n".join(ast.get_source_segment(source, line) or "" for line in node.body[1:])
        if words and len(words) >= _MIN and len(body) >= _MIN:
            out.append((words[:_MAX], f"def {node.name}\n{body}"[:_MAX]))
    return out
