-- Version 26: the sessions with an open turn that can go on, by the time at which it does; 0 is at once. The server counts
-- the values of an expression by itself, so that it knows how few of many turns that sleep are due.

CREATE INDEX CONCURRENTLY sessions_wakes ON warren.sessions (coalesce(wakes, 0)) WHERE turn IS NOT NULL
