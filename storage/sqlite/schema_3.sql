-- Version 3: what waits to be said to a session, and the names by which sessions speak to one another.

CREATE TABLE inbox (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given out again: whoever was given one may ask for it later
    session INTEGER NOT NULL,
    id      TEXT NOT NULL,
    key     TEXT,                -- the sender's own, by which a second sending is known
    starts  INTEGER NOT NULL,    -- 1: it begins a turn where none runs; 0: it waits for the next one
    body    TEXT NOT NULL,
    outcome TEXT                 -- NULL: it waits; what came of it, empty as long as nobody knows
) STRICT;
CREATE UNIQUE INDEX inbox_keys ON inbox (session, key) WHERE key IS NOT NULL;
CREATE INDEX inbox_waiting ON inbox (session) WHERE outcome IS NULL;

ALTER TABLE sessions ADD COLUMN peer TEXT;
CREATE UNIQUE INDEX sessions_peer ON sessions (peer) WHERE peer IS NOT NULL AND state = 0;
