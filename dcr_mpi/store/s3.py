"""An S3 bucket as a store; the only module that imports boto3, and only when a store is opened.

Conditional requests (``If-None-Match: *``) make put-once; known lengths choose between one PUT and a multipart
upload; a body cut short goes on with a ranged get. botocore's own retries are off: there is one retry layer, ours,
and no transfer manager that could pick another HTTP client. Credentials come from the standard AWS chain alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from ..errors import CorruptInput, DcrError, StoreDenied, StoreUnavailable, UsageError
from .api import Buffer, Entry, Stat, check_key, check_range, is_key
from .download import Download
from .options import MIB, S3Options
from .retry import Operation, Transient
from .verdict import verdict

_COMPARE = 8 * MIB
_ESSENTIAL = {
    "create_multipart_upload": "UploadId",
    "list_multipart_uploads": "IsTruncated",
    "list_objects_v2": "IsTruncated",
}
log = logging.getLogger(__name__)


class _Swept(Exception):
    """Somebody dropped the upload that a part was for."""


class S3Store:
    """See :class:`dcr_mpi.store.api.Store`. ``prefix`` is a key or empty; the bucket must exist."""

    def __init__(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> None:
        self.options = options or S3Options()
        self._bucket, self._prefix = bucket, check_key(prefix) + "/" if prefix else ""
        self.url = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._client = _client(self.options)
        self._bucket_seen = False

    def put_once(self, key: str, data: Buffer) -> bool:
        """Conditional PUT, or conditional completion of a multipart upload; a 412 is settled by reading back."""
        check_key(key)
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        op = self._operation("put", key)
        if len(view) < self.options.multipart_mib * MIB:
            body = data if isinstance(data, bytes) else bytes(view)
            created = op.attempt(lambda: self._put_whole(op, key, body))
        else:
            created = op.attempt(lambda: self._put_parts(op, key, view))
        return created or op.attempt(lambda: self._holds(op, key, view))

    def get(self, key: str, start: int = 0, stop: int | None = None, *, limit: int | None = None) -> bytes | None:
        """Ranged GET that resumes where a body ended early; see the contract for ranges and ``limit``."""
        check_key(key)
        check_range(start, stop)
        if start == stop:
            return b""
        return self._get(self._operation("get", key), key, start, stop, limit)

    def _get(self, op: Operation, key: str, start: int, stop: int | None, limit: int | None = None) -> bytes | None:
        ask, name = partial(self._ask, op, "get_object"), {"Key": self._prefix + key}
        return Download(ask, partial(_translated, op.what), _shut, op, name, start, stop, limit).run()

    def stat(self, key: str) -> Stat | None:
        """HEAD; where its bare status says too little (no body, no code), one-byte GET for the reason."""
        check_key(key)
        return self._stat(self._operation("stat", key), key)

    def _stat(self, op: Operation, key: str) -> Stat | None:
        answer = op.attempt(lambda: self._ask(op, "head_object", "400", "403", "404", Key=self._prefix + key))
        if not answer["Code"]:
            return Stat(answer["ContentLength"])
        if answer["Code"] == "404" and self._bucket_seen:
            return None
        codes = ("NoSuchKey", "InvalidRange", "416")
        answer = op.attempt(lambda: self._ask(op, "get_object", *codes, Key=self._prefix + key, Range="bytes=0-0"))
        if answer["Code"] == "NoSuchKey":
            return None
        if answer["Code"]:
            return Stat(0)
        answer["Body"].close()
        total = answer.get("ContentRange", "").rpartition("/")[2]
        return Stat(int(total) if total.isdigit() else answer["ContentLength"])

    def sweep(self, prefix: str, older_than_s: float) -> int:
        """Abort multipart uploads begun more than ``older_than_s`` seconds ago by the store's own clock."""
        op, dropped = self._operation("sweep", prefix), 0
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for page, now in self._pages(op, "list_multipart_uploads", prefix, markers):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"] <= now - timedelta(0, older_than_s):
                    name = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    abort = partial(self._ask, op, "abort_multipart_upload", "NoSuchUpload", **name)
                    dropped += not op.attempt(abort)["Code"]
        return dropped

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Pages of ListObjectsV2; ages by the clock in the answers' own headers."""
        markers = {"ContinuationToken": "NextContinuationToken"}
        for page, now in self._pages(self._operation("list", prefix), "list_objects_v2", prefix, markers):
            for found in page.get("Contents", ()):
                if is_key(key := found["Key"].removeprefix(self._prefix)):
                    yield Entry(key, found["Size"], max(0.0, (now - found["LastModified"]).total_seconds()))

    def _pages(
        self, op: Operation, method: str, prefix: str, markers: dict[str, str]
    ) -> Iterator[tuple[dict[str, Any], datetime]]:
        """Every page of a listing with the store's own time; ``markers``: what to ask of the next by what this says."""
        where = {"Prefix": self._prefix + (check_key(prefix) + "/" if prefix else "")}
        while True:
            page = op.attempt(partial(self._ask, op, method, **where))
            yield page, _date(page)
            if not page.get("IsTruncated"):
                return
            where |= {asked: page[told] for asked, told in markers.items()}

    def ahead_s(self, key: str) -> float:
        """By the Date of an answer, which is cut to whole seconds."""
        op, begun = self._operation("stat", check_key(key)), time.time()
        answer = op.attempt(lambda: self._ask(op, "head_object", Key=self._prefix + key))
        return _date(answer).timestamp() + 0.5 - (begun + time.time()) / 2

    def delete(self, key: str) -> None:
        check_key(key)
        op = self._operation("delete", key)
        op.attempt(lambda: self._ask(op, "delete_object", "NoSuchKey", "404", Key=self._prefix + key))

    def _operation(self, verb: str, key: str) -> Operation:
        return Operation(self.options.policy, f"{verb} {self.url}/{key}")

    def _ask(self, op: Operation, method: str, *expected: str, **parameters: Any) -> dict[str, Any]:
        """One request. The answer has ``Code``: empty, or an error code (or bare status) out of ``expected``."""
        from botocore.exceptions import ClientError

        with _translated(op.what):
            try:
                answer = getattr(self._client, method)(Bucket=self._bucket, **parameters)
            except ClientError as error:
                problem, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
                status, code = meta.get("HTTPStatusCode", 0), str(problem.get("Code", ""))
                if code not in expected:
                    headers = meta.get("HTTPHeaders", {})
                    if code == str(status) and method != "head_object" and "xml" in headers.get("content-type", ""):
                        raise Transient(f"{status} and an error document that was cut off") from error
                    raise verdict(op.what, status, code, str(problem.get("Message", "")), headers) from error
                self._bucket_seen |= code in ("NoSuchKey", "PreconditionFailed", "NoSuchUpload")
                return {"Code": code}
        if _ESSENTIAL.get(method, "ResponseMetadata") not in answer:
            raise Transient("an answer without a body")  # cut off before its first byte: the library reads it as empty
        self._bucket_seen = True
        return {**answer, "Code": ""}

    def _put_whole(self, op: Operation, key: str, body: bytes) -> bool:
        name = {"Key": self._prefix + key, "Body": body, "IfNoneMatch": "*"}
        return not self._ask(op, "put_object", "PreconditionFailed", "412", **name)["Code"]

    def _put_parts(self, op: Operation, key: str, view: memoryview) -> bool:
        """One multipart upload from its begin to its end. Its requests retry each; only a lost upload starts over."""
        name = {"Key": self._prefix + key}
        name["UploadId"] = op.attempt(lambda: self._ask(op, "create_multipart_upload", **name))["UploadId"]
        code = "not completed"
        try:
            parts = {"Parts": self._send_parts(op, name, view)}
            end = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchUpload")
            code = op.attempt(
                lambda: self._ask(op, "complete_multipart_upload", *end, MultipartUpload=parts, IfNoneMatch="*", **name)
            )["Code"]
        except _Swept:
            code = "NoSuchUpload"
        finally:
            if code:
                self._abort(op, name)
        if code in ("", "PreconditionFailed", "412"):
            return not code
        # A conflict consumes the upload; a missing upload is our own completion with its reply lost, or was swept.
        if self._stat(op, key) is not None:
            return False
        raise Transient(f"{code} before the end of a multipart upload")

    def _send_parts(self, op: Operation, name: dict[str, str], view: memoryview) -> list[dict[str, Any]]:
        step = self.options.part_bytes(len(view))

        def send(at: int) -> dict[str, Any]:
            number = at // step + 1
            body = bytes(view[at : at + step])
            part = {"Body": body, "PartNumber": number, **name}
            sent = op.attempt(lambda: self._ask(op, "upload_part", "NoSuchUpload", **part))
            if sent["Code"]:
                raise _Swept
            sums = {k: v for k, v in sent.items() if k.startswith("Checksum") and k != "ChecksumType"}
            return {"PartNumber": number, "ETag": sent["ETag"], **sums}

        with ThreadPoolExecutor(self.options.part_threads) as pool:
            futures = [pool.submit(send, at) for at in range(0, len(view), step)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _abort(self, op: Operation, name: dict[str, str]) -> None:
        try:
            self._ask(op, "abort_multipart_upload", "NoSuchUpload", **name)
        except DcrError as error:  # the first error matters more; sweep drops the upload later
            log.warning("%s: could not abort its upload: %s", op.what, error)

    def _holds(self, op: Operation, key: str, view: memoryview) -> bool:
        """Does the object that won hold our bytes? It does after a lost reply of our own earlier try."""
        found = self._stat(op, key)
        if found is None:
            raise Transient("an object that exists, says the put, and does not, says the store when asked for it")
        if found.size != len(view):
            return False
        for at in range(0, len(view), _COMPARE):
            piece = at, min(at + _COMPARE, len(view))
            mine = bytes(view[slice(*piece)])
            # Ranges have no checksum: what differs is read again before the put is called lost.
            if mine != self._get(op, key, *piece) and mine != self._get(op, key, *piece):
                return False
        return True


def _date(answer: dict[str, Any]) -> datetime:
    """The store's own time, by an answer's headers."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _shut(body: Any) -> None:
    """Wake whoever reads a body: no time-out of a socket ends a connection that brings a byte now and then."""
    with suppress(Exception):  # it was read to its end just now
        body._raw_stream.shutdown()


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """botocore's own exceptions in the words of the store's contract; server answers are for ``verdict``."""
    from botocore import exceptions as b
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (b.IncompleteReadError, b.ResponseStreamingError) as error:
        # An orderly end too early, not a broken connection.
        clean = "IncompleteRead" in type(error).__name__ + str(error)
        raise Transient(
            f"a body that ends early ({error})", becomes=CorruptInput if clean else StoreUnavailable
        ) from error
    except b.FlexibleChecksumError as error:
        raise Transient(f"checksum of the body ({error})", becomes=CorruptInput) from error
    except b.SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            raise Transient(f"TLS ({error})") from error
        raise StoreDenied(
            what,
            found=str(error),
            remedy="this machine does not trust the store's certificate: set "
            "ca_bundle to the PEM file of its authority",
        ) from error
    except (b.NoCredentialsError, b.PartialCredentialsError) as error:
        raise StoreDenied(
            what,
            found=str(error),
            expected="credentials from the standard AWS chain",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role",
        ) from error
    except (
        b.CredentialRetrievalError,
        b.TokenRetrievalError,
        b.UnauthorizedSSOTokenError,
        b.SSOTokenLoadError,
    ) as error:
        raise StoreDenied(
            what, found=str(error), remedy="renew the credentials, then run the same command again"
        ) from error
    except b.ParamValidationError as error:
        raise UsageError(what, found=str(error), remedy="correct the store's URL") from error
    except (b.HTTPClientError, b.ConnectionError) as error:
        inner = error.kwargs.get("error")
        if isinstance(inner, DcrError):  # a signal's: the library takes whatever is raised below it for its own
            raise inner from None
        raise Transient(f"{type(error).__name__} ({error})") from error
    except (
        HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:  # from below a body (an error's, too) that is being read
        raise Transient(f"{type(error).__name__} ({error})") from error
    except b.BotoCoreError as error:
        raise StoreDenied(
            what, found=f"{type(error).__name__} ({error})", remedy="check the store's settings"
        ) from error


def _client(options: S3Options) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    style = {None: "path" if options.endpoint else "auto", True: "path", False: "virtual"}[options.path_style]
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=64,
        tcp_keepalive=True,
        request_checksum_calculation=options.checksums,
        response_checksum_validation=options.checksums,
        s3={"addressing_style": style},
    )
    try:
        session = boto3.Session()
        client = session.client(
            "s3",
            endpoint_url=options.endpoint,
            region_name=options.region or session.region_name or "us-east-1",
            verify=False if not options.verify_tls else options.ca_bundle,
            config=config,
        )
        options.check_url(client.meta.endpoint_url)  # AWS_ENDPOINT_URL and profiles have their say in it too
        return client
    except (BotoCoreError, ValueError) as error:  # an unknown profile, a malformed endpoint
        raise UsageError("S3 client", found=str(error), remedy="check endpoint, region and AWS_PROFILE") from error
