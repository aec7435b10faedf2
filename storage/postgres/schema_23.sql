-- Version 23: the state of an open turn that any process can go on with, and those of its newest answer's tool calls.

ALTER TABLE warren.sessions ADD COLUMN turn text;  -- JSON; NULL: no turn is open, or none that can go on

CREATE TABLE warren.calls (
    session bigint NOT NULL,
    place   bigint NOT NULL,  -- among the calls of the answer, from 0
    call_id text COLLATE "C" NOT NULL,
    state   text COLLATE "C" NOT NULL,
    body    text NOT NULL,    -- JSON: all else that is known of the call
    PRIMARY KEY (session, place)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE POLICY of_tenant ON warren.calls USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_')
        THEN EXISTS (SELECT FROM warren.sessions s WHERE s.key = session) ELSE true END);
ALTER TABLE warren.calls ENABLE ROW LEVEL SECURITY;

-- A release that does not know the column ends an open turn as one whose process died: nobody may go on with it then.
CREATE FUNCTION warren.forget_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM warren.calls WHERE session = NEW.key;
    NEW.turn := NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER turn_ended BEFORE UPDATE OF turns ON warren.sessions FOR EACH ROW
    WHEN (OLD.turn IS NOT NULL AND NEW.turns > OLD.turns AND NEW.turn = OLD.turn)
    EXECUTE FUNCTION warren.forget_turn();
