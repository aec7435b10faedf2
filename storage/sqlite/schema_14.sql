-- Version 14: the things that tool calls wait for, and the time at which a turn goes on whose calls all wait.

ALTER TABLE sessions ADD COLUMN wakes INTEGER;  -- NULL: no turn is open, or it goes on at once
DROP INDEX sessions_turns;
CREATE INDEX sessions_wakes ON sessions (wakes, tenant) WHERE turn IS NOT NULL;

CREATE TABLE waits (
    key     INTEGER PRIMARY KEY,  -- the newest has the highest
    session INTEGER NOT NULL,
    tenant  TEXT NOT NULL,        -- of the session
    reason  TEXT NOT NULL,
    wait_id TEXT NOT NULL,
    state   TEXT NOT NULL,
    since   INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    body    TEXT NOT NULL         -- JSON: all else that is known of the wait
) STRICT;
CREATE UNIQUE INDEX waits_by_id ON waits (session, wait_id, reason);
CREATE INDEX waits_open ON waits (session) WHERE state <> 'settled';
CREATE INDEX waits_in_background ON waits (session) WHERE state <> 'settled' AND reason = 'background';
CREATE INDEX waits_unanswered ON waits (tenant, since, key, reason) WHERE state = 'waiting';
