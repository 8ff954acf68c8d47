"""Another process on a store, for races and deaths. Prints one JSON value.

``race``: waits for the file ``go``, then puts ``size`` bytes of value ``fill`` under each of ``keys``.
``die``: the same for one key, but SIGKILLs itself at the ``step``-th durable step (0: lives).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.getcwd())

from dcr_mpi.store import S3Options, open_store

STEPS = ("mkdir", "open", "fsync", "link", "unlink")


def main(mode: str, a: dict[str, Any]) -> None:
    store = open_store(a["url"], S3Options(**a["options"]) if a["options"] else None)
    data = bytes([a["fill"]]) * a["size"]
    if mode == "race":
        print("ready", flush=True)
        while not os.path.exists(a["go"]):
            time.sleep(0.001)
        print(json.dumps([store.put_once(key, data) for key in a["keys"]]))
        return
    step = itertools.count(1)

    def deadly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if next(step) == a["step"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    if a["options"]:  # after the n-th request has been answered
        store._ask = functools.partial(deadly, store._ask)  # type: ignore[attr-defined]
    else:  # after the n-th system call of these kinds
        for name in STEPS:
            setattr(os, name, functools.partial(deadly, getattr(os, name)))
    print(json.dumps(store.put_once(a["key"], data)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
