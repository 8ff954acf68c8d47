"""The direct relay: parts from the ranks that build them to the roots of every site, over TLS, with no store between.

:mod:`.protocol` is the bytes, :mod:`.shelf` what a rank has built; :class:`Outlet` serves it, :class:`Inlet` fetches
it. Who may connect where is said in a document of the store (:class:`dcr_mpi.model.Offer`); acts put it and read it.
The one door to ssl and to sockets.
"""

from .client import Inlet, Reach, Unreachable
from .server import Outlet, Serving, spool_folder

__all__ = ["Inlet", "Outlet", "Reach", "Serving", "Unreachable", "spool_folder"]
