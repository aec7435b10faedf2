"""The version of a store, as plain values."""

from typing import Literal

from warren.base.values import frozen


@frozen
class Program:
    """A living process that uses a store.

    Attributes:
        name: its name.
        version: the newest version of a store that it knows.
    """

    name: str
    version: int


@frozen(kw_only=True)
class StoreVersion:
    """The version of a store beside that of this program.

    Attributes:
        path: the file, or the address of the database without its password.
        version: of the store; 0 if there is none.
        needs: the version that a program has to know in order to use the store.
        known: the newest version that this program knows.
        release: the release of Warren that changed the store's tables last, if the store tells it.
        contractible: whether it has tables or columns that only older releases use.
        programs: the living processes that use it, if the store tells their versions.
    """

    path: str
    version: int
    needs: int
    known: int
    release: str | None = None
    contractible: bool = False
    programs: tuple[Program, ...] = ()

    @property
    def state(self) -> Literal["missing", "older", "current", "newer", "too_new"]:
        """The state: this program can use a current and a newer store as it is, and no store that is too new."""
        if not self.version:
            return "missing"
        if self.needs > self.known:
            return "too_new"
        if self.version == self.known:
            return "current"
        return "older" if self.version < self.known else "newer"
