-- Version 24: the sessions with an open turn that can go on.

CREATE INDEX CONCURRENTLY sessions_turns ON warren.sessions (tenant, key) WHERE turn IS NOT NULL
