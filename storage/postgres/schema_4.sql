-- Version 4: the order in which followers read what has changed.

-- The transaction that changed what is projected of a session. Numbers of transactions, unlike those of a sequence, tell
-- which smaller ones may still be committed: see storage/projection/database_feed.py.
ALTER TABLE warren.sessions ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();

-- A trigger, because releases that do not know the column write sessions too, as long as an update of the processes
-- lasts. A change of hands alone is no change that is projected.
CREATE FUNCTION warren.mark_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END
$$;
CREATE TRIGGER sessions_changed BEFORE UPDATE OF state, updated_at, labels, title, messages_from, events_after
    ON warren.sessions FOR EACH ROW EXECUTE FUNCTION warren.mark_changed();
