"""A training program of as many ranks as there are shards, that publishes its arrays; tests start it with a JSON plan.

``start`` is the checkpoint that the arrays hold at first, ``publish`` those that training makes of them, one by one;
``spoil``: rank whose copy of a replicated tensor is another; ``hold``: killed once the last one is sealed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from dcr_mpi.checkpoint import Checkpoint
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import DcrError
from dcr_mpi.layout import Place
from dcr_mpi.model import Box, Layout
from dcr_mpi.publisher import Publisher
from dcr_mpi.synth import TINY, trainer_layout


def arrays_of(directory: Path, layout: Layout, shard: int) -> dict[str, np.ndarray]:
    """A shard's datasets as arrays of raw words."""
    out = {}
    with Checkpoint(directory, layout) as checkpoint:
        for spec in layout.shards[shard].datasets:
            kind, box = dtype(spec.dtype), Box.whole(spec.shape)
            words = np.empty(box.size * kind.words, f"u{kind.word_bytes}")
            checkpoint.read(Place(shard, spec.path, box), 0, len(words), words)
            out[spec.path] = words.reshape(spec.shape)
    return out


def train(plan: dict[str, Any]) -> list[dict[str, Any]]:
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    layout = trainer_layout(TINY, world.Get_size())
    done = []
    with Publisher(plan["config"], layout.shards[rank].datasets, world, plan.get("keep")) as publisher:
        start = publisher.start(arrays_of(Path(plan["start"]), layout, rank))
        done.append({"start": start})
        for step, directory in enumerate(plan["publish"]):
            arrays = arrays_of(Path(directory), layout, rank)
            if plan.get("spoil") == rank:
                arrays["model.layers.0.norm.weight"].reshape(-1)[0] ^= 1
            last = step == len(plan["publish"]) - 1
            found = publisher.publish(arrays, step, wait=not (last and plan.get("hold")))
            done.append(vars(found))
            for array in arrays.values():
                array.fill(0)  # the arrays are free again: what was published must not depend on them
        if plan.get("hold"):
            world.Barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    return done


def main() -> None:
    try:
        done = train(json.loads(sys.argv[1]))
    except DcrError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(error.code)
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(99)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
