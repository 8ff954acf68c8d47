"""``python -m bench.real``: make real pairs below ``bench/out/real``. Needs requirements/real.in; no network."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from .checkpoints import OUT, describe

RATES = {"rl": [1e-7, 3e-7, 1e-6, 3e-6, 1e-5], "mlm": [1e-6, 3e-6, 1e-5]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=OUT)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--apart", type=int, default=8, help="steps between the far pair")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")  # before transformers is imported
    try:
        from .train import run
    except ModuleNotFoundError as error:
        raise SystemExit(f"bench.real: {error}; pip install -r requirements/real.lock") from None
    shutil.rmtree(args.directory, ignore_errors=True)
    args.directory.mkdir(parents=True)
    begun, pairs = time.monotonic(), []
    facts: dict[str, object] = {"warm_up": args.warm_up, "apart": args.apart, "seed": args.seed}
    for loss, rates in RATES.items():
        layout, made, seconds = run(
            args.directory, loss, rates, args.warm_up, args.apart, args.seed, lambda text: print(text, flush=True)
        )
        pairs += made
        facts[f"{loss}_seconds_per_step"] = round(seconds, 2)
        describe(args.directory, layout, pairs, facts)
    print(f"{len(pairs)} pairs below {args.directory}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
