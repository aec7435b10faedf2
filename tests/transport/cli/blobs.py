"""The files in the store of the command line."""

from contextlib import closing
from typing import Any

import apsw

from tests.transport.cli.process import Cli
from warren.storage.sqlite.file import FILE_NAME


def stored(cli: Cli) -> list[str]:
    """Return the files in the store of the folder."""
    with closing(apsw.Connection(str(cli.folder / ".rkat" / FILE_NAME))) as db:
        rows: list[Any] = db.execute("SELECT body FROM blobs ORDER BY key").fetchall()
        return [body.decode() for (body,) in rows]
