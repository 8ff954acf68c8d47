"""What is done outside around an apply: a shell command, or an HTTP POST, that pauses or resumes an engine."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping

from .errors import NotReady


def run_hook(when: str, hook: str, facts: Mapping[str, str], timeout_s: float) -> None:
    """Run a hook and wait for it.

    Parameters
    ----------
    when : str
        "before" or "after"; for messages.
    hook : str
        ``http://`` or ``https://``: the facts are posted there as a JSON object, and a status of 2xx is wanted. Else a
        command for the shell, with the facts in its environment: ``site`` as ``DCR_SITE``, and so on.
    timeout_s : float
        How long it may take.

    Raises
    ------
    NotReady
        It failed, or took too long.
    """
    found = _post(hook, facts, timeout_s) if hook.startswith(("http://", "https://")) else _call(hook, facts, timeout_s)
    if found:
        raise NotReady(
            f"hook {when} apply of version {facts.get('version')}: {hook}",
            found=found,
            expected="success",
            remedy="mend it and run this again: "
            + (
                "nothing was applied" if when == "before" else "the version is applied, and the hook will not be called"
            ),
        )


def _call(command: str, facts: Mapping[str, str], timeout_s: float) -> str:
    env = {**os.environ, **{f"DCR_{name.upper()}": value for name, value in facts.items()}}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {timeout_s:g} s"
    return f"exit code {done.returncode}: {done.stdout[-500:].strip()}" if done.returncode else ""


def _post(url: str, facts: Mapping[str, str], timeout_s: float) -> str:
    body = json.dumps(dict(facts)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"status {error.code} ({error.reason})"
    except (OSError, ValueError) as error:  # refused, unknown host, time-out, no URL
        return str(error)
