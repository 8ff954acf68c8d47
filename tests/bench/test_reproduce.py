"""The page of benchmarks: the paper's figures beside ours, from what the benches wrote, and nothing around them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.reproduce import BEGIN, END, PAGE
from tests.world import ROOT


def _codec(percent: int, scheme: str, bits: float) -> dict[str, object]:
    return {
        "data": f"bf16 adam {percent} %",
        "scheme": scheme,
        "bits_per_changed": bits,
        "payload_bytes": int(100 * bits),
    }


@pytest.fixture
def page(tmp_path: Path) -> Path:
    schemes = {"class, ulp": 6.0, "u16 gaps, xor": 12.0, "u16 gaps, overwrite": 21.0, "u16 gaps, mixed": 12.6}
    codec = [_codec(p, scheme, bits) for p in (1, 3) for scheme, bits in schemes.items()]
    link = {
        "transport": "direct", "mode": "jobs that stay", "files": "tmpfs", "positions": "plain", "shape": "wide",
        "law": "adam", "changed_fraction": 0.0302, "dense_bytes": 1 << 30, "full_s": 50.0, "refit_s": 1.25,
        "speedup": 40.0, "limit": 88.2, "transport_share": 0.47, "pause_s": 0.31,
    }  # fmt: skip
    (tmp_path / "codec.json").write_text(json.dumps(codec))
    (tmp_path / "link.json").write_text(json.dumps([link]))
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n{BEGIN}old\n{END}and more\n")
    return page


def _reproduce(page: Path) -> subprocess.CompletedProcess[str]:
    folder = page.parent
    command = [sys.executable, "-m", "bench.reproduce", "--page", str(page)]
    command += ["--codec", str(folder / "codec.json"), "--link", str(folder / "link.json")]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


def test_every_figure_beside_ours(page: Path) -> None:
    done = _reproduce(page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith(f"by hand\n{BEGIN}| figure | the paper | ours | how |\n") and text.endswith(
        f"{END}and more\n"
    )
    lines = text.splitlines()
    assert "| 12.6 | 6.00, 2.00 times fewer; its form by our reading 12.0 |" in "".join(
        line for line in lines if "adam 3 %" in line
    )
    assert any("1.75 to 1.75" in line and "1.7 to 2.2" in line for line in lines)
    assert any("40% to 40%" in line for line in lines)
    refit = next(line for line in lines if "1.2 s against 50.0 s: 40.0x of at most 88x" in line)
    assert "refit of 1024 MiB in wide matrices, in memory, by direct, jobs that stay, plain, adam 3.0%" in refit
    assert sum("projected: `dcr plan --paper`" in line for line in lines) == 12
    assert all(("measured" in line) != ("projected" in line) for line in lines[4:-2])
    again = page.read_text()
    assert _reproduce(page).returncode == 0 and page.read_text() == again


def test_what_is_missing_is_named(page: Path) -> None:
    (page.parent / "link.json").unlink()
    done = _reproduce(page)
    assert done.returncode == 1 and "Next: make bench-link" in done.stderr
    (page.parent / "link.json").write_text("[]")
    page.write_text("no markers")
    assert _reproduce(page).returncode == 1
    assert page.read_text() == "no markers"


def test_the_page_has_its_markers() -> None:
    text = (ROOT / PAGE).read_text()
    assert text.count(BEGIN) == text.count(END) == 1 and text.index(BEGIN) < text.index(END)
