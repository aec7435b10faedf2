-- Version 6: what each process says of itself, and the secret by which processes of one store know each other.

ALTER TABLE holders ADD COLUMN status TEXT;                    -- JSON; NULL: a process of an older release
ALTER TABLE holders ADD COLUMN leaves INTEGER NOT NULL DEFAULT 0;  -- 1: it was asked to drain

CREATE TABLE cluster (secret TEXT) STRICT;  -- one row at most
