-- Version 17: inputs that wait for a time; sessions that work for other sessions; triggers, and
-- what became of their newest deliveries.

ALTER TABLE inbox ADD COLUMN not_before INTEGER;  -- microseconds since 1970; NULL: it waits for no time
CREATE INDEX inbox_begins ON inbox (not_before, session) WHERE outcome IS NULL AND starts;

CREATE TABLE triggers (
    key      INTEGER PRIMARY KEY,  -- the newest has the highest
    id       TEXT NOT NULL UNIQUE,
    tenant   TEXT NOT NULL,
    session  INTEGER,              -- NULL: a new session each time
    creation TEXT,                 -- the idempotency key under which it was made
    problem  TEXT,
    secret   TEXT NOT NULL,        -- in clear: calls are verified with it
    body     TEXT NOT NULL         -- JSON: all else
) STRICT;
CREATE INDEX triggers_of_tenant ON triggers (tenant, key);
CREATE INDEX triggers_of_session ON triggers (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX triggers_created ON triggers (tenant, creation) WHERE creation IS NOT NULL;

CREATE TABLE trigger_deliveries (
    trigger_key INTEGER NOT NULL,
    delivery    TEXT NOT NULL,     -- the sender's id of the call
    at          INTEGER NOT NULL,
    state       TEXT NOT NULL,
    tenant      TEXT NOT NULL,     -- of the trigger
    session     INTEGER,           -- NULL: none got the prompt
    body        TEXT NOT NULL,     -- JSON: all else
    PRIMARY KEY (trigger_key, delivery)
) STRICT;

ALTER TABLE inbox ADD COLUMN notice INTEGER NOT NULL DEFAULT 0;  -- 1: no prompt; its session does as it says, also while its turn waits
CREATE INDEX inbox_notices ON inbox (session) WHERE notice AND outcome IS NULL;

ALTER TABLE sessions ADD COLUMN delegated_by TEXT;  -- the session_id of the parent; NULL: it is no child
CREATE INDEX sessions_delegated ON sessions (delegated_by) WHERE delegated_by IS NOT NULL;
