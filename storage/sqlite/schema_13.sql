-- Version 13: the state of an open turn that any process can go on with, and those of its newest answer's tool calls.

ALTER TABLE sessions ADD COLUMN turn TEXT;  -- JSON; NULL: no turn is open, or none that can go on
CREATE INDEX sessions_turns ON sessions (tenant) WHERE turn IS NOT NULL;

CREATE TABLE calls (
    session INTEGER NOT NULL,
    place   INTEGER NOT NULL,  -- among the calls of the answer, from 0
    call_id TEXT NOT NULL,
    state   TEXT NOT NULL,
    body    TEXT NOT NULL      -- JSON: all else that is known of the call
) STRICT;
CREATE UNIQUE INDEX calls_in_order ON calls (session, place);
