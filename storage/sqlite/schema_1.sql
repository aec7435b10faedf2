-- Version 1. Times are microseconds since 1970 UTC; `body`, `labels`, `details` and `cuts` are JSON.
-- Rowid tables with an index beside them: new rows go to the end, so a turn writes few pages, whichever session it is of.

CREATE TABLE meta (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,  -- of the opening that gave out event numbers last
    clean      INTEGER NOT NULL   -- 1: that opening ended in good order and stored every number it gave out
) STRICT;
INSERT INTO meta VALUES (1, 1, 1);

CREATE TABLE sessions (
    key           INTEGER PRIMARY KEY,
    session_id    TEXT NOT NULL UNIQUE,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    state         INTEGER NOT NULL,  -- 0 open, 1 archived, 2 deleted: a tombstone, all else of it is gone
    model         TEXT NOT NULL,
    turns         INTEGER NOT NULL,
    steps         INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    head          INTEGER NOT NULL,  -- the position of the first message that the model still sees as it was
    generation    INTEGER NOT NULL,  -- of the opening that wrote the row
    labels        TEXT NOT NULL,
    details       TEXT NOT NULL
) STRICT;
CREATE INDEX sessions_newest ON sessions (state, updated_at DESC, session_id);

CREATE TABLE messages (
    session    INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX messages_in_order ON messages (session, position);

-- What the model sees in place of the messages before a head; the newest one counts.
CREATE TABLE compactions (
    session         INTEGER NOT NULL,
    step            INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    head            INTEGER NOT NULL,
    messages_before INTEGER NOT NULL,
    messages_after  INTEGER NOT NULL,
    summary         TEXT NOT NULL,
    summary_tokens  INTEGER NOT NULL
) STRICT;
CREATE INDEX compactions_in_order ON compactions (session);  -- by rowid: there may be several before one step

CREATE TABLE events (
    session   INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    timestamp INTEGER NOT NULL,
    body      TEXT NOT NULL,
    cuts      TEXT
) STRICT;
CREATE UNIQUE INDEX events_in_order ON events (session, seq);

-- What sessions.labels says, for searching; kept in step by the two triggers alone.
CREATE TABLE labels (
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (name, value, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_of_session ON labels (session);

CREATE TRIGGER labels_added AFTER INSERT ON sessions WHEN NEW.labels <> '{}' BEGIN
    INSERT INTO labels SELECT key, value, NEW.key FROM json_each(NEW.labels);
END;

CREATE TRIGGER labels_changed AFTER UPDATE OF labels ON sessions WHEN NEW.labels <> OLD.labels BEGIN
    DELETE FROM labels WHERE session = NEW.key;
    INSERT INTO labels SELECT key, value, NEW.key FROM json_each(NEW.labels);
END;
