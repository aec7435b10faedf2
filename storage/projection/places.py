"""The folders of a projection: the default tenant's files are in the store's folder, those of others in `tenants/`."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from warren.base.principals import DEFAULT_TENANT
from warren.base.values import define
from warren.storage.folders import UNFINISHED, Folder, nothing_there
from warren.storage.projection.formats import CHECKPOINT, INDEX, is_session_id, tenant_of_folder

SESSIONS: Final = "sessions"
"""The folder, in that of a tenant, with a folder for each session. The default tenant's has the checkpoint, too."""
TENANTS: Final = "tenants"
"""The folder, in that of the store, with a folder for each tenant but the default one."""
FORMER_CHECKPOINT: Final = "checkpoint.json"
"""The checkpoint of the first layout, which had the sessions of all tenants in one folder."""
logger: Final = logging.getLogger("warren.projection")


@define(eq=False)
class Places:
    """The open folders of a projection.

    Attributes:
        root: the store's folder.
        sessions: the sessions of the default tenant.
    """

    root: Folder
    sessions: Folder
    _tenants: Folder | None = None

    @classmethod
    def open(cls, root: Folder) -> "Places":
        """Open the folders in a store's folder; files that an earlier version has put elsewhere are moved first."""
        _move_former(root)
        with contextlib.ExitStack() as undo:
            sessions = root.open(SESSIONS)
            undo.callback(sessions.close)
            places = cls(root, sessions)
            with contextlib.suppress(FileNotFoundError):
                places._tenants = root.open(TENANTS, make=False)
            undo.pop_all()
        return places

    def close(self) -> None:
        """Close them, but for the store's folder."""
        for folder in (self._tenants, self.sessions):
            if folder is not None:
                folder.close()

    @property
    def has_tenants(self) -> bool:
        """Whether there is a folder for tenants besides the default one."""
        return self._tenants is not None

    def are_lost(self) -> bool:
        """Tell whether one of the folders was removed, or moved away."""
        there = self.root.leads_to(SESSIONS, self.sessions)
        return not there or (self._tenants is not None and not self.root.leads_to(TENANTS, self._tenants))

    @contextlib.contextmanager
    def of(self, name: str, *, make: bool = True) -> Iterator[Folder]:
        """Open the folder of a tenant, by its name, for as long as the block lasts."""
        if name == DEFAULT_TENANT:
            yield self.root
            return
        if self._tenants is None:
            self._tenants = self.root.open(TENANTS, make=make)
        with self._tenants.inner(name, make=make) as folder:
            yield folder

    def names(self) -> set[str]:
        """Return the names of the folders of tenants."""
        below = () if self._tenants is None else self._tenants.names()
        return {DEFAULT_TENANT, *(name for name in below if tenant_of_folder(name) is not None)}

    def sync(self) -> None:
        """Have the lists of names on the disk itself."""
        for folder in (self.sessions, self._tenants, self.root):
            if folder is not None:
                folder.sync()

    def clear(self) -> None:
        """Remove all files of the projection, and nothing that somebody else has put beside them."""
        self.sessions.remove(CHECKPOINT)
        for name in self.names():
            with nothing_there(), self.of(name, make=False) as folder:
                _clear(folder)
            if self._tenants is not None and name != DEFAULT_TENANT:
                self._tenants.remove_empty(name)
        self.root.remove_empty(TENANTS)


def _clear(tenant: Folder) -> None:
    """Remove an index and the folders of sessions."""
    for name in (INDEX, INDEX + UNFINISHED):
        tenant.remove(name)
    with nothing_there(), tenant.inner(SESSIONS, make=False) as sessions:
        for name in filter(is_session_id, sessions.names()):
            sessions.remove(name)
    tenant.remove_empty(SESSIONS)


def _move_former(root: Folder) -> None:
    """Move the default tenant's files to where they are now; a kill leaves the rest of them to the next call.

    The checkpoint is moved last, as it vouches for the others.
    """
    moved = False
    with nothing_there(), root.inner(TENANTS, make=False) as tenants:
        with nothing_there(), tenants.inner(DEFAULT_TENANT, make=False) as former:
            moved = _move(former, root, [INDEX])
            with nothing_there(), former.inner(SESSIONS, make=False) as inner, root.inner(SESSIONS) as sessions:
                moved |= _move(inner, sessions, inner.names())
            former.remove_empty(SESSIONS)
        tenants.remove_empty(DEFAULT_TENANT)
        if tenants.has(CHECKPOINT):
            with root.inner(SESSIONS) as sessions:
                _move(tenants, sessions, [CHECKPOINT])
    root.remove_empty(TENANTS)
    if moved:
        logger.warning("the projections in %s/%s were moved to %s", TENANTS, DEFAULT_TENANT, SESSIONS)


def _move(source: Folder, target: Folder, names: Iterable[str]) -> bool:
    """Move files and folders, and return whether there were any.

    If the target has one of the same name, that one stays, and a file that is no projection stays where it is.
    """
    found = False
    for name in filter(source.has, names):
        if not target.has(name):
            source.move(name, target)
        elif name in (INDEX, CHECKPOINT) or is_session_id(name):
            source.remove(name)
        else:
            continue
        found = True
    return found
