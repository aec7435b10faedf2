-- Version 26: the sessions with an open turn that can go on, by the time at which it does.

CREATE INDEX CONCURRENTLY sessions_wakes ON warren.sessions (wakes, tenant, key) WHERE turn IS NOT NULL
