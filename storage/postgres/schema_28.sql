-- Version 28: schedules, and what became of their newest runs.

CREATE TABLE warren.schedules (
    key      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the newest has the highest
    id       text COLLATE "C" NOT NULL UNIQUE,
    tenant   text COLLATE "C" NOT NULL,
    session  bigint,              -- NULL: a new session each time
    creation text COLLATE "C",    -- the idempotency key under which it was made
    due      bigint,              -- NULL: it is paused, or has ended
    holder   int,                 -- the process that deals with a run that is due
    problem  text,
    body     text NOT NULL        -- JSON: all else
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX schedules_due ON warren.schedules (due) WHERE due IS NOT NULL;
CREATE INDEX schedules_of_tenant ON warren.schedules (tenant, key);
CREATE INDEX schedules_of_session ON warren.schedules (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX schedules_created ON warren.schedules (tenant, creation) WHERE creation IS NOT NULL;
CREATE POLICY of_tenant ON warren.schedules USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.schedules ENABLE ROW LEVEL SECURITY;

CREATE TABLE warren.schedule_runs (
    schedule bigint NOT NULL,
    due      bigint NOT NULL,
    tenant   text COLLATE "C" NOT NULL,  -- of the schedule
    session  bigint,                     -- NULL: none got the prompt
    body     text NOT NULL,              -- JSON: all else
    PRIMARY KEY (schedule, due)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE POLICY of_tenant ON warren.schedule_runs USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.schedule_runs ENABLE ROW LEVEL SECURITY;
