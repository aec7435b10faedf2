-- Version 29: inputs that wait for a time; sessions that work for other sessions; triggers, and
-- what became of their newest deliveries; webhooks, and what is posted to them; versions of agents.

ALTER TABLE warren.inbox ADD COLUMN not_before bigint;  -- microseconds since 1970; NULL: it waits for no time
DROP INDEX warren.inbox_begins;
CREATE INDEX inbox_begins ON warren.inbox (not_before, session) WHERE outcome IS NULL AND starts;

CREATE TABLE warren.triggers (
    key      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the newest has the highest
    id       text COLLATE "C" NOT NULL UNIQUE,
    tenant   text COLLATE "C" NOT NULL,
    session  bigint,              -- NULL: a new session each time
    creation text COLLATE "C",    -- the idempotency key under which it was made
    problem  text,
    secret   text NOT NULL,       -- in clear: calls are verified with it
    body     text NOT NULL        -- JSON: all else
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX triggers_of_tenant ON warren.triggers (tenant, key);
CREATE INDEX triggers_of_session ON warren.triggers (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX triggers_created ON warren.triggers (tenant, creation) WHERE creation IS NOT NULL;
CREATE POLICY of_tenant ON warren.triggers USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.triggers ENABLE ROW LEVEL SECURITY;

CREATE TABLE warren.trigger_deliveries (
    trigger_key bigint NOT NULL,
    delivery    text COLLATE "C" NOT NULL,  -- the sender's id of the call
    at          bigint NOT NULL,
    state       text NOT NULL,
    tenant      text COLLATE "C" NOT NULL,  -- of the trigger
    session     bigint,                     -- NULL: none got the prompt
    body        text NOT NULL,              -- JSON: all else
    PRIMARY KEY (trigger_key, delivery)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE POLICY of_tenant ON warren.trigger_deliveries USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.trigger_deliveries ENABLE ROW LEVEL SECURITY;

ALTER TABLE warren.inbox ADD COLUMN notice boolean NOT NULL DEFAULT false;  -- no prompt: its session does as it says, also while its turn waits
CREATE INDEX inbox_notices ON warren.inbox (session) WHERE notice AND outcome IS NULL;

ALTER TABLE warren.sessions ADD COLUMN delegated_by text COLLATE "C";  -- the session_id of the parent; NULL: it is no child
CREATE INDEX sessions_delegated ON warren.sessions (delegated_by) WHERE delegated_by IS NOT NULL;

ALTER TABLE warren.meta ADD COLUMN hooks bigint;  -- another number after each change of the webhooks

CREATE TABLE warren.webhooks (
    key      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the newest has the highest
    id       text COLLATE "C" NOT NULL UNIQUE,
    tenant   text COLLATE "C" NOT NULL,
    session  bigint,              -- NULL: all sessions with its labels
    creation text COLLATE "C",    -- the idempotency key under which it was made
    paused   int NOT NULL,
    failing  bigint,              -- since when; NULL: the newest delivery has succeeded
    problem  text,
    body     text NOT NULL        -- JSON: all else, the secret too
) WITH (fillfactor = 70);
CREATE INDEX webhooks_of_tenant ON warren.webhooks (tenant, key);
CREATE INDEX webhooks_of_session ON warren.webhooks (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX webhooks_created ON warren.webhooks (tenant, creation) WHERE creation IS NOT NULL;
CREATE POLICY of_tenant ON warren.webhooks USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.webhooks ENABLE ROW LEVEL SECURITY;

CREATE TABLE warren.deliveries (
    key          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the newest has the highest
    id           text COLLATE "C" NOT NULL UNIQUE,
    webhook      text COLLATE "C" NOT NULL,  -- its id
    tenant       text COLLATE "C" NOT NULL,
    session      bigint NOT NULL,
    type         text COLLATE "C" NOT NULL,
    created_at   bigint NOT NULL,
    state        text COLLATE "C" NOT NULL,  -- pending, delivered or dead
    due          bigint,                     -- NULL: no attempt is to come
    holder       int,                        -- the process that attempts it
    attempts     bigint NOT NULL,
    attempted_at bigint,
    status       bigint,                     -- of the newest attempt; NULL: there was no answer
    problem      text,
    body         text NOT NULL               -- JSON, as it is posted; empty: it was delivered
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX deliveries_due ON warren.deliveries (webhook, due) WHERE due IS NOT NULL;
CREATE INDEX deliveries_of_webhook ON warren.deliveries (webhook, state, key);
CREATE INDEX deliveries_of_session ON warren.deliveries (session);
CREATE POLICY of_tenant ON warren.deliveries USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.deliveries ENABLE ROW LEVEL SECURITY;

CREATE TABLE warren.agents (
    key        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the newest has the highest
    tenant     text COLLATE "C" NOT NULL,  -- whose sessions were made of it
    name       text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,  -- the SHA-256 of the body
    created_at bigint NOT NULL,
    body       text NOT NULL               -- JSON: the agent as data
);
CREATE UNIQUE INDEX agents_of_tenant ON warren.agents (tenant, name, version);
CREATE POLICY of_tenant ON warren.agents USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.agents ENABLE ROW LEVEL SECURITY;
