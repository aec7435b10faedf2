"""What may be read of a live session at any time, without asking its actor: a published view, replaced whole."""

import attrs

from warren.actors.eventlog import EventLog
from warren.actors.lifecycle import Admission
from warren.actors.session.conversation import Conversation
from warren.records import SessionRecord
from warren.views import SessionSummary, SessionView, summary_of, view_of


@attrs.define(eq=False)
class Visible:
    """A live session as everybody may see it; only its actor changes it.

    Attributes:
        log: its event stream.
        held: what the session holds, begun by `create` or `load` before `run`.
    """

    log: EventLog
    held: Conversation = attrs.field(init=False)
    _admission: Admission = attrs.field(init=False)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.log.session_id

    @property
    def record(self) -> SessionRecord | None:
        """The session as of its last finished turn; None until it is loaded."""
        return self.held.record

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and has not ended."""
        return self._admission.turn_runs

    def view(self) -> SessionView:
        """Return the session as of its last finished turn; it has to be loaded."""
        return view_of(self.held.known, live=True, active=self.turn_runs)

    @property
    def current(self) -> bool:
        """Whether nothing newer can be in the store than what is shown here."""
        return self.held.current

    def summary(self) -> SessionSummary:
        """Return the session's row in `list`; it has to be loaded."""
        return summary_of(self.held.known, live=True, active=self.turn_runs)
