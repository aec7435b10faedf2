-- Version 25: the things that tool calls wait for, and the time at which a turn goes on whose calls all wait.

ALTER TABLE warren.sessions ADD COLUMN wakes bigint;  -- NULL: no turn is open, or it goes on at once

CREATE TABLE warren.waits (
    key     bigint GENERATED ALWAYS AS IDENTITY,  -- the newest has the highest
    session bigint NOT NULL,
    tenant  text COLLATE "C" NOT NULL,            -- of the session
    reason  text COLLATE "C" NOT NULL,
    wait_id text COLLATE "C" NOT NULL,
    state   text COLLATE "C" NOT NULL,
    since   bigint NOT NULL,
    until   bigint NOT NULL,
    body    text NOT NULL,                        -- JSON: all else that is known of the wait
    PRIMARY KEY (session, wait_id, reason)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX waits_open ON warren.waits (session) WHERE state <> 'settled';
CREATE INDEX waits_in_background ON warren.waits (session) WHERE state <> 'settled' AND reason = 'background';
CREATE INDEX waits_unanswered ON warren.waits (tenant, since, key, reason) WHERE state = 'waiting';
CREATE POLICY of_tenant ON warren.waits USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.waits ENABLE ROW LEVEL SECURITY;

-- As in version 23. What its calls wait for is over with the turn.
CREATE OR REPLACE FUNCTION warren.forget_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM warren.calls WHERE session = NEW.key;
    UPDATE warren.waits SET state = 'settled'
        WHERE session = NEW.key AND state <> 'settled' AND reason <> 'background';
    NEW.turn := NULL;
    NEW.wakes := NULL;
    RETURN NEW;
END
$$;

-- A release that does not know the column goes on with a turn that waits, or ends it: it waits no more. Whoever knows the column
-- and writes the same time anew with another state has the turn looked at once more, which does no harm.
CREATE FUNCTION warren.forget_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.turn IS NULL THEN
        UPDATE warren.waits SET state = 'settled'
            WHERE session = NEW.key AND state <> 'settled' AND reason <> 'background';
    END IF;
    NEW.wakes := NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER turn_awoken BEFORE UPDATE OF turn ON warren.sessions FOR EACH ROW
    WHEN (OLD.wakes IS NOT NULL AND NEW.wakes = OLD.wakes AND NEW.turn IS DISTINCT FROM OLD.turn)
    EXECUTE FUNCTION warren.forget_wake();
