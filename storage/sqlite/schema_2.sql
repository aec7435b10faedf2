-- Version 2: who may write a session; a number for every change, which followers go by; what retention has removed.

CREATE TABLE holders (
    key        INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given out again: a session may still name one that is gone
    name       TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

ALTER TABLE sessions ADD COLUMN holder INTEGER;                           -- NULL: it was put back in good order
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;         -- how often the holder has changed
ALTER TABLE sessions ADD COLUMN change INTEGER NOT NULL DEFAULT 0;        -- of all sessions' changes, the newest of this one
ALTER TABLE sessions ADD COLUMN messages_from INTEGER NOT NULL DEFAULT 0; -- messages before it are gone, but the first
ALTER TABLE sessions ADD COLUMN events_after INTEGER NOT NULL DEFAULT 0;  -- events up to this number are gone

UPDATE sessions SET change = key;
CREATE UNIQUE INDEX sessions_change ON sessions (change);

-- Deleted sessions of which something is left elsewhere.
CREATE TABLE erasures (session_id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

-- Numbers that a process of the former version may have shown and not stored stay free.
UPDATE sessions SET last_seq = last_seq + 1000000 * ((SELECT meta.generation + 1 - clean FROM meta) - generation)
WHERE state <> 2;
ALTER TABLE sessions DROP COLUMN generation;
DROP TABLE meta;
