-- Version 17: the files of messages. Their bytes are stored once for each tenant, and go with the last session that has
-- them. They are not compressed, as most files are already, so that a part of one is read without the rest.

CREATE TABLE warren.blobs (
    key    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    sha256 text NOT NULL,
    body   bytea NOT NULL,
    UNIQUE (tenant, sha256)
);
ALTER TABLE warren.blobs ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE warren.attachments (
    session    bigint NOT NULL,
    blob       bigint NOT NULL,
    media_type text NOT NULL,
    name       text,
    PRIMARY KEY (session, blob)
);
CREATE INDEX attachments_of_blob ON warren.attachments (blob);
CREATE POLICY of_tenant ON warren.blobs USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_')
        THEN tenant = (SELECT warren.tenant()) ELSE true END);
CREATE POLICY of_tenant ON warren.attachments USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_')
        THEN EXISTS (SELECT FROM warren.sessions s WHERE s.key = session) ELSE true END);
ALTER TABLE warren.blobs ENABLE ROW LEVEL SECURITY;
ALTER TABLE warren.attachments ENABLE ROW LEVEL SECURITY;
