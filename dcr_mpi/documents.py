"""JSON objects of the store, put once and read strictly: within a size, signed where keys are configured, and each
under the key that it is for. The digest of an object is of its content, without the signature: keys may change,
identities do not.
"""

from __future__ import annotations

from typing import TypeVar

from .digest import sha256
from .errors import Conflict, CorruptInput, NotReady
from .jsonable import MAX_JSON, dumps, loads
from .signing import Keyring, Place
from .signing.keyring import MAX_LINE
from .store.api import Store

T = TypeVar("T")
SMALL = 4 << 20  # bytes of an object that grows with the number of sites at most


class Documents:
    """Typed objects of a store under the keys of one side. Cheap to make; safe from several threads."""

    def __init__(self, store: Store, keys: Keyring) -> None:
        self.store, self._keys = store, keys

    @property
    def signed(self) -> bool:
        """Whether what is read must be signed."""
        return self._keys.required

    def read(self, cls: type[T], place: Place, limit: int = MAX_JSON, **fields: object) -> tuple[T, str] | None:
        """An object and the digest of its content, or None where there is none.

        ``limit`` is in bytes; ``fields`` are what the object must say of itself, for its key says so.

        Raises
        ------
        NotAuthentic, CorruptInput
        """
        raw = self.store.get(place.key, limit=limit + MAX_LINE)
        if raw is None:
            return None
        content = self._keys.open(place, raw)
        value = loads(cls, content, place.key)
        for name, expected in fields.items():
            if getattr(value, name) != expected:
                raise CorruptInput(
                    place.key,
                    found=f"{name} {str(getattr(value, name))[:80]!r}",
                    expected=f"{expected!r}, as its key says",
                    remedy="somebody copied it there: look at who may write to the store",
                )
        return value, sha256(content)

    def need(self, cls: type[T], place: Place, remedy: str, limit: int = MAX_JSON, **fields: object) -> tuple[T, str]:
        """The same; NotReady with this remedy where there is none."""
        found = self.read(cls, place, limit, **fields)
        if found is None:
            raise NotReady(f"{place.key} in {self.store.url}", found="no such object", expected="it", remedy=remedy)
        return found

    def put(self, place: Place, value: object, lost: str) -> str:
        """Put an object that everybody must agree on; its digest. Who signed the one that stands does not matter.

        Raises
        ------
        Conflict
            Other content stands under the key; ``lost`` says what that means.
        """
        standing = self.put_first(type(value), place, value)
        if standing != value:
            raise Conflict(
                f"{place.key} in {self.store.url}",
                found="other content under it",
                expected="nothing, or the same",
                remedy=lost,
            )
        return sha256(dumps(value))

    def put_first(self, cls: type[T], place: Place, value: object, limit: int = MAX_JSON, **fields: object) -> T:
        """Put an object if nobody did before; the one that stands."""
        assert isinstance(value, cls)
        if self.store.put_once(place.key, self._keys.seal(place, dumps(value))):
            return value
        return self.need(cls, place, "", limit, **fields)[0]
