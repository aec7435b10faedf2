"""The arguments of query functions."""

import apsw

from warren.base.values import frozen
from warren.storage.sqlite.lease import Holder


@frozen
class Reading:
    """The place of a query that is answered.

    Attributes:
        db: a connection to the file.
        me: this process, as a holder of sessions in the file.
    """

    db: apsw.Connection
    me: Holder
