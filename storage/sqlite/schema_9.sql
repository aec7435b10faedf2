-- Version 9: the files of messages. Their bytes are stored once for each tenant, and go with the last session that has
-- them.

CREATE TABLE blobs (
    key    INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    body   BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX blobs_by_hash ON blobs (tenant, sha256);

CREATE TABLE attachments (
    session    INTEGER NOT NULL,
    blob       INTEGER NOT NULL,
    media_type TEXT NOT NULL,
    name       TEXT,
    PRIMARY KEY (session, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX attachments_of_blob ON attachments (blob);
