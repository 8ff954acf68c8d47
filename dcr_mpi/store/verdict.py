"""What an S3 error answer means: a table from (HTTP status, error code) to a class that a user can act on. Pure."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

from ..errors import DcrError, ResourceError, StoreDenied
from .retry import Transient

# code -> what to do. HEAD answers have no body: there the code is the bare status.
_DENIED = {
    "InvalidAccessKeyId": "the store does not know this access key: check AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "SignatureDoesNotMatch": "the secret key is wrong (or a proxy rewrites requests): check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: renew the credentials, then run the same command again",
    "ExpiredTokenException": "the session token has expired: renew the credentials, then run the same command again",
    "TokenRefreshRequired": "the session token has expired: renew the credentials, then run the same command again",
    "RequestExpired": "the credentials or this machine's clock are out of date: renew them, check the clock",
    "InvalidToken": "the session token is malformed: check AWS_SESSION_TOKEN, unset it for plain keys",
    "NoSuchBucket": "the bucket does not exist: create it, or correct the store's URL; waiting does not help",
    "PermanentRedirect": "the bucket lives in another region: set the region (or the endpoint) of the store",
    "AuthorizationHeaderMalformed": "the bucket lives in another region: set the region of the store",
    "NotImplemented": "the store lacks this request: it must support If-None-Match; try checksums: when_required",
    "501": "the store lacks this request: it must support If-None-Match; try checksums: when_required",
    "404": "the endpoint answers, but not as an S3 store does: check endpoint and path_style",
    "405": "the endpoint answers, but not as an S3 store does: check endpoint and path_style",
}
_CLOCK = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_FULL = {"507", "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioStorageQuotaExceeded"}
_PASSING = {
    "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "RequestTimeoutException", "Throttling",
    "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "BadDigest", "IncompleteBody",
    "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "ConditionalRequestConflict", "OperationAborted",
    "NoSuchKey",  # of a put: a delete went on at the same time
}  # fmt: skip
_PASSING_STATUS = {408, 409, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529}
_PERMISSION = "these credentials may not do this: grant the permissions that docs/store.md lists"


def verdict(what: str, status: int, code: str, message: str, headers: Mapping[str, str]) -> DcrError:
    """The error for an answer that is not a success, :class:`Transient` where a retry can help.

    Parameters
    ----------
    what : str
        Operation and key.
    status, code, message
        HTTP status, the error code of the body (the bare status where it has none), its text.
    headers : Mapping
        Response headers, lower case.
    """
    found = f"{status} {code}" + (f" ({message[:200]})" if message else "")
    if code in _CLOCK:
        return StoreDenied(what, found=f"{found}; the store says {headers.get('date', 'nothing')}, "
                           f"this machine {email.utils.formatdate(usegmt=True)}",
                           remedy="this machine's clock is wrong: synchronise it (NTP), then run again")  # fmt: skip
    if code in _FULL or status == 507:
        return ResourceError(what, found=found, remedy="the store is full: free space, then run the same command again")
    if code in _DENIED:
        return StoreDenied(what, found=found, remedy=_DENIED[code])
    if code in _PASSING or status in _PASSING_STATUS:
        return Transient(found, retry_after_s=_retry_after(headers.get("retry-after", "")))
    if status in (401, 403):
        return StoreDenied(what, found=found, remedy=_PERMISSION)
    if status in (301, 302, 307, 308):
        return StoreDenied(what, found=found, remedy=_DENIED["PermanentRedirect"])
    return StoreDenied(what, found=found, remedy="the store refuses the request itself: check region, path_style, "
                       "checksums (when_required for older stores) and part_mib")  # fmt: skip


def _retry_after(text: str) -> float:
    """Seconds of a Retry-After header (a number or an HTTP date), 0 for anything else."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
