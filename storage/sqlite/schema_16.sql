-- Version 16: schedules, and what became of their newest runs.

CREATE TABLE schedules (
    key      INTEGER PRIMARY KEY,  -- the newest has the highest
    id       TEXT NOT NULL UNIQUE,
    tenant   TEXT NOT NULL,
    session  INTEGER,              -- NULL: a new session each time
    creation TEXT,                 -- the idempotency key under which it was made
    due      INTEGER,              -- NULL: it is paused, or has ended
    holder   INTEGER,              -- the process that deals with a run that is due
    problem  TEXT,
    body     TEXT NOT NULL         -- JSON: all else
) STRICT;
CREATE INDEX schedules_due ON schedules (due) WHERE due IS NOT NULL;
CREATE INDEX schedules_of_tenant ON schedules (tenant, key);
CREATE INDEX schedules_of_session ON schedules (session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX schedules_created ON schedules (tenant, creation) WHERE creation IS NOT NULL;

CREATE TABLE schedule_runs (
    schedule INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    tenant   TEXT NOT NULL,        -- of the schedule
    session  INTEGER,              -- NULL: none got the prompt
    body     TEXT NOT NULL,        -- JSON: all else
    PRIMARY KEY (schedule, due)
) STRICT;
