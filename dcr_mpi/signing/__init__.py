"""Who wrote an object of the store: a line with a signature behind its JSON, checked before the JSON is read.

What is signed is the SHA-256 of the content together with the object's key, which says policy, kind, version and
site: an object copied to another key does not verify there. Keys come from files or the environment (:mod:`.files`);
who may write what is the :class:`Keyring`'s affair. docs/security.md has the threat model.
"""

from .api import Place, Signer, Verifier
from .files import ENVIRONMENT, generate, load_keyring
from .keyring import NO_KEYS, NOBODY, Keyring, Trust

__all__ = [
    "ENVIRONMENT",
    "NOBODY",
    "NO_KEYS",
    "Keyring",
    "Place",
    "Signer",
    "Trust",
    "Verifier",
    "generate",
    "load_keyring",
]
