-- Version 17: inputs that wait for a time; sessions that work for other sessions; triggers, and
-- what became of their newest deliveries; webhooks, and what is posted to them; versions of agents.

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

ALTER TABLE cluster ADD COLUMN hooks INTEGER;  -- another number after each change of the webhooks

CREATE TABLE webhooks (
    key      INTEGER PRIMARY KEY,  -- the newest has the highest
    id       TEXT NOT NULL UNIQUE,
    tenant   TEXT NOT NULL,
    session  INTEGER,              -- NULL: all sessions with its labels
    creation TEXT,                 -- the idempotency key under which it was made
    paused   INTEGER NOT NULL,
    failing  INTEGER,              -- since when; NULL: the newest delivery has succeeded
    problem  TEXT,
    body     TEXT NOT NULL         -- JSON: all else, the secret too
) STRICT;
CREATE INDEX webhooks_of_tenant ON webhooks (tenant, key);
CREATE INDEX webhooks_of_session ON webhooks (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX webhooks_created ON webhooks (tenant, creation) WHERE creation IS NOT NULL;

CREATE TABLE deliveries (
    key          INTEGER PRIMARY KEY,  -- the newest has the highest
    id           TEXT NOT NULL UNIQUE,
    webhook      TEXT NOT NULL,        -- its id
    tenant       TEXT NOT NULL,
    session      INTEGER NOT NULL,
    type         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    state        TEXT NOT NULL,        -- pending, delivered or dead
    due          INTEGER,              -- NULL: no attempt is to come
    holder       INTEGER,              -- the process that attempts it
    attempts     INTEGER NOT NULL,
    attempted_at INTEGER,
    status       INTEGER,              -- of the newest attempt; NULL: there was no answer
    problem      TEXT,
    body         TEXT NOT NULL         -- JSON, as it is posted; empty: it was delivered
) STRICT;
CREATE INDEX deliveries_due ON deliveries (webhook, due) WHERE due IS NOT NULL;
CREATE INDEX deliveries_of_webhook ON deliveries (webhook, state, key);
CREATE INDEX deliveries_of_session ON deliveries (session);

CREATE TABLE agents (
    key        INTEGER PRIMARY KEY,  -- the newest has the highest
    tenant     TEXT NOT NULL,        -- whose sessions were made of it
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,        -- the SHA-256 of the body
    created_at INTEGER NOT NULL,
    body       TEXT NOT NULL         -- JSON: the agent as data
) STRICT;
CREATE UNIQUE INDEX agents_of_tenant ON agents (tenant, name, version);
