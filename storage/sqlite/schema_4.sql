-- Version 4: a session's title, which can change while a turn runs; the keys under which sessions were created.

ALTER TABLE sessions ADD COLUMN title TEXT;
UPDATE sessions SET title = details ->> '$.title' WHERE json_valid(details);

CREATE TABLE creations (
    key     TEXT PRIMARY KEY,  -- the client's own, kept when the session is deleted
    session INTEGER NOT NULL,
    params  TEXT NOT NULL      -- JSON: a digest of each parameter of the request
) STRICT, WITHOUT ROWID;
