"""What is done outside around an apply: a shell command, or an HTTP POST, that pauses or resumes an engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException

from .errors import NotReady


def run_hook(when: str, hook: str, facts: Mapping[str, str], timeout_s: float) -> str:
    """Run a hook, wait for it, and return the end of what a command printed, for people.

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
    told = ""
    if hook.startswith(("http://", "https://")):
        found = _post(hook, facts, timeout_s)
    else:
        found, told = _call(hook, facts, timeout_s)
    if found:
        raise NotReady(
            f"hook --{when}, version {facts.get('version')}: {hook}",
            found=found,
            expected="success",
            remedy="mend it and run this again: "
            + (
                "nothing was applied"
                if when == "before"
                else "what it is told of is done, and the hook is called once more"
            ),
        )
    return told


def _call(command: str, facts: Mapping[str, str], timeout_s: float) -> tuple[str, str]:
    """What went wrong, or nothing; and the end of what the command printed."""
    env = {name: value for name, value in os.environ.items() if name != "DCR_KEY"}  # no hook's business
    env |= {f"DCR_{name.upper()}": value for name, value in facts.items()}
    with tempfile.TemporaryFile() as out:  # no pipe: what a hook leaves running must not hold it up
        shell = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # all of it: a pause that has failed must not come later
            shell.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"nothing within {timeout_s:g} s", ""
            raise
        out.seek(max(0, out.seek(0, os.SEEK_END) - 500))
        told = out.read().decode(errors="replace").strip()
        return f"exit code {code}{': ' if told else ''}{told}" if code else "", told


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is no success: followed, it would be a GET elsewhere, without the facts."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(url: str, facts: Mapping[str, str], timeout_s: float) -> str:
    body = json.dumps(dict(facts)).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.build_opener(_Stay).open(request, timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"status {error.code} ({error.reason})"
    except (OSError, ValueError, HTTPException) as error:  # refused, unknown host, time-out, no URL, no HTTP
        return str(error)
