"""The large objects of a store, which are named by their content: parts and tilings.

Whoever names one has signed its digest, so that what is found under a name is right or nothing.
"""

from __future__ import annotations

import re

import zstandard

from .digest import content_sha256, sha256
from .errors import Conflict, CorruptInput, NotReady
from .jsonable import MAX_JSON, dumps, loads
from .model import PartEntry, Tiling
from .store.api import Store
from .waiting import wait_for

_MAX_PART = 8 << 30
SHA256 = re.compile("[0-9a-f]{64}")


def version_key(policy: str, version: int, leaf: str, anchor: bool = False) -> str:
    """The key of something of one version, or of its anchor."""
    return f"{policy}/{'anchors' if anchor else 'versions'}/{version:06d}/{leaf}"


class Contents:
    """Parts and tilings of one policy. Safe from several threads."""

    def __init__(self, store: Store, policy: str) -> None:
        self.store, self.name = store, policy

    def part_key(self, version: int, index: int, digest: str, anchor: bool = False) -> str:
        """Named by content: a retry meets its own bytes, and no publisher can overwrite another's."""
        return version_key(self.name, version, f"parts/{index:06d}-{digest[:32]}", anchor)

    def tiling(self, digest: str) -> Tiling:
        if not SHA256.fullmatch(digest):
            raise CorruptInput("name of a tiling", found=repr(digest[:80]), expected="a SHA-256 in hex")
        key = f"{self.name}/tilings/{digest}.json.zst"
        packed = self.store.get(key, limit=MAX_JSON)
        if packed is None:
            raise NotReady(
                f"{key} in {self.store.url}",
                found="no such object",
                expected="it",
                remedy="the trainer's encode puts it",
            )
        try:
            size = zstandard.get_frame_parameters(packed).content_size
            if size > MAX_JSON:  # no size at all is the largest number there is
                raise CorruptInput(key, found=f"a frame of {size} bytes", expected=f"at most {MAX_JSON}")
            raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptInput(key, found=str(error), expected="one zstd frame") from None
        if sha256(raw) != digest:
            raise CorruptInput(key, found=f"content with digest {sha256(raw)}", expected="the digest in its name")
        return loads(Tiling, raw, key)

    def put_tiling(self, tiling: Tiling) -> str:
        """Store a tiling under the digest of its text, which is returned."""
        digest = content_sha256(tiling)
        key = f"{self.name}/tilings/{digest}.json.zst"
        if self.store.stat(key) is not None:  # of an earlier version: who reads it checks the text
            return digest
        # Another zstd may have packed the same text to other bytes before: then the text is what counts.
        if not self.store.put_once(key, zstandard.ZstdCompressor(level=3).compress(dumps(tiling))):
            self.tiling(digest)
        return digest

    def is_entry(self, entry: PartEntry, version: int, index: int, anchor: bool) -> bool:
        named = bool(SHA256.fullmatch(entry.sha256)) and 0 < entry.size <= _MAX_PART
        return named and (entry.index, entry.key) == (index, self.part_key(version, index, entry.sha256, anchor))

    def check_entry(self, entry: PartEntry, version: int, index: int, key: str) -> None:
        """Raise CorruptInput unless an entry found under ``key`` is one that encode would have written there."""
        if not self.is_entry(entry, version, index, False):
            raise CorruptInput(
                key,
                found=f"an entry of part {entry.index} under {entry.key[:80]!r}, {entry.size} bytes",
                expected=f"that of part {index} of version {version}",
                remedy="somebody wrote it who is no dcr encode: look at who may write to the store, abort this version",
            )

    def part(self, entry: PartEntry, wait_s: float = 0.0, poll_s: tuple[float, float] = (0.05, 2.0)) -> bytes:
        """A sealed part's bytes, checked; fetched once more where they are not what the manifest says.

        ``wait_s``: for a part that the store shows later than the manifest that names it.

        Raises
        ------
        NotReady, CorruptInput
            The part is missing, or wrong twice; the message names it.
        """
        what, wrong = f"part {entry.index} ({entry.key})", ""
        for _ in range(2):
            try:
                data = wait_for(what, lambda: self.store.get(entry.key, limit=entry.size), wait_s, poll_s)
            except NotReady as error:
                raise NotReady(
                    what,
                    found=f"no such object{f' after {wait_s:g} s' if wait_s else ''}",
                    expected=f"{entry.size} bytes",
                    remedy="the manifest names it: look whether it was deleted, or whether the store shows it late "
                    "(dcr refit --wait S waits for it)",
                ) from error
            except CorruptInput as error:  # longer, or changed while it was read
                wrong = str(error.found)
                continue
            if len(data) == entry.size and sha256(data) == entry.sha256:
                return data
            wrong = f"{len(data)} bytes, sha256 {sha256(data)[:16]}"
        raise CorruptInput(
            what,
            found=f"{wrong}, the second time too",
            expected=f"{entry.size} bytes, {entry.sha256[:16]}",
            remedy="the object was changed or cut in the store: abort this version and encode the next",
        )

    def put_part(self, entry: PartEntry, data: bytes) -> None:
        """Put a part under its key.

        Raises
        ------
        Conflict
            The key, which is made of its content's digest, holds other content.
        """
        if not self.store.put_once(entry.key, data):
            raise Conflict(
                f"part {entry.key}",
                found="other bytes under a key made of these bytes' digest",
                expected="these bytes",
                remedy="the store changed an object: look at who may write to it, then delete that key and run again",
            )
