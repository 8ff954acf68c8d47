"""``python -m bench.reproduce``: every figure of the NeMo-DCR paper beside ours, into docs/benchmarks.md.

Takes ``bench/out/codec.json`` and ``bench/out/link.json``, which the benches write, and ``dcr plan --paper``. Between
its two markers the page is replaced; what stands around them is written by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- written by make reproduce: begin -->\n", "<!-- written by make reproduce: end -->\n"
Rows = list[dict[str, Any]]
_PAPERS = 0.02  # its lowest fraction changed is 3 %


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.reproduce", description=__doc__.partition("\n")[0])
    parser.add_argument("--codec", type=Path, default=Path("bench/out/codec.json"))
    parser.add_argument("--link", type=Path, default=Path("bench/out/link.json"))
    parser.add_argument("--calibration", type=Path, help="of dcr bench, for the projections")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    codec, link = _read(args.codec, "make bench-codec"), _read(args.link, "make bench-link")
    more = ["--calibration", str(args.calibration)] if args.calibration else []
    command = [sys.executable, "-m", "dcr_mpi", "plan", "--paper", "--json", *more]
    planned = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    args.page.write_text(replaced(args.page.read_text(), table(codec, link, planned)))
    print(f"{args.page} written")
    return 0


def _read(path: Path, how: str) -> Rows:
    try:
        return json.loads(path.read_bytes())
    except OSError:
        sys.exit(f"{path} is not there. Next: {how}")


def replaced(page: str, table: str) -> str:
    """The page with another table between the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"no markers in the page: {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table + END + after


def table(codec: Rows, link: Rows, planned: dict[str, Any]) -> str:
    """Markdown; every row says whether ours was measured or projected."""
    lines = [["figure", "the paper", "ours", "how"], ["---"] * 4]
    lines += [[*row, "measured: `make bench-codec`"] for row in _codec(codec)]
    lines += [[*row, "measured: `make bench-link`"] for row in _link(link)]
    lines += [[*row, f"projected: `dcr plan --paper`, {planned['calibration']}"] for row in _planned(planned["rows"])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _codec(rows: Rows) -> list[list[str]]:
    at = {(r["data"], r["scheme"]): r for r in rows}
    out = []
    for percent, paper in ((1, 14.1), (3, 12.6), (5, 11.8)):
        data = f"bf16 adam {percent} %"
        if (data, "class, ulp") not in at:
            continue
        ours, theirs = at[data, "class, ulp"]["bits_per_changed"], at[data, "u16 gaps, xor"]["bits_per_changed"]
        seen = f"{ours:.2f}, {theirs / ours:.2f} times fewer; its form by our reading {theirs:.1f}"
        out.append([f"bits per changed weight, adam {percent} %", f"{paper}", seen])
    over = {d: at[d, "u16 gaps, overwrite"]["payload_bytes"] for d, s in at if s == "u16 gaps, overwrite"}
    bf16 = [d for d in over if d.startswith("bf16")]
    ratios = [over[d] / at[d, "u16 gaps, xor"]["payload_bytes"] for d in bf16]
    saved = [1 - at[d, "u16 gaps, mixed"]["payload_bytes"] / over[d] for d in bf16]
    out.append(["XOR against overwrite, compressed, bf16", "1.7 to 2.2 times smaller", _range(ratios, "{:.2f}")])
    out.append(["mixed against overwrite, bf16", "38 % to 40 % fewer bytes", _range(saved, "{:.0%}")])
    return out


def _link(rows: Rows) -> list[list[str]]:
    out = []
    for row in rows:
        size = f"{row['dense_bytes'] / (1 << 20):.0f} MiB"
        coded = f"{row['positions']}, {row['law']} {row['changed_fraction']:.1%}"
        where = row["files"].replace("tmpfs", "in memory") if row["files"].startswith("tmpfs") else f"on {row['files']}"
        shape = row.get("shape", "narrow")
        what = f"refit of {size} in {shape} matrices, {where}, by {row['transport']}, {row['mode']}, {coded}"
        seen = (
            f"{row['refit_s']:.1f} s against {row['full_s']:.1f} s: {row['speedup']:.1f}x "
            f"of at most {row['limit']:.0f}x; transport {row['transport_share']:.0%}, pause {row['pause_s']:.2f} s"
        )
        theirs = "12x to 40x at 3 % and 5 %, 30B to 1T" if row["changed_fraction"] > _PAPERS else "not given at 1 %"
        out.append([what, theirs, seen])
    return out


def _planned(rows: Rows) -> list[list[str]]:
    out = []
    for row in rows:
        how = "object storage" if row["transport"] == "store" else "relay tree"
        paper, ours = row["paper"], row["ours"]
        told = [
            f"refit {_span(paper['refit_s'], '{:g}')} s" if paper["refit_s"] else "",
            f"against {paper['full_s']:g} s" if paper["full_s"] else "",
            f"{_span(paper['speedup'], '{:g}')}x over all cases" if paper["speedup"] else "",
            f"transport {_span(paper['transport_share'], '{:.0%}')}" if paper["transport_share"] else "",
        ]
        seen = (
            f"refit {ours['refit_s']:.0f} s against {ours['full_s']:.0f} s: {ours['speedup']:.0f}x; "
            f"transport {ours['transport_share']:.0%}; held up by {ours['bottleneck']}; {row['ranks']} ranks a side"
        )
        out.append([f"{row['model']}, {row['changed']:.0%}, {how}", ", ".join(filter(None, told)), seen])
    return out


def _span(value: float | Sequence[float], form: str) -> str:
    return " to ".join(dict.fromkeys(form.format(v) for v in (value if isinstance(value, list) else [value])))


def _range(values: Sequence[float], form: str) -> str:
    return f"{form.format(min(values))} to {form.format(max(values))}" if values else "not measured"


if __name__ == "__main__":
    sys.exit(main())
