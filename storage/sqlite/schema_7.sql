-- Version 7: the tenant that a session belongs to, and the principal that created it.

ALTER TABLE sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT 'local';

DROP INDEX sessions_newest;
CREATE INDEX sessions_newest ON sessions (tenant, state, updated_at DESC, session_id);
DROP INDEX sessions_peer;
CREATE UNIQUE INDEX sessions_peer ON sessions (tenant, peer) WHERE peer IS NOT NULL AND state = 0;

CREATE TABLE creations_of_tenants (
    tenant  TEXT NOT NULL,
    key     TEXT NOT NULL,  -- the client's own, kept when the session is deleted
    session INTEGER NOT NULL,
    params  TEXT NOT NULL,  -- JSON: a digest of each parameter of the request
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
INSERT INTO creations_of_tenants SELECT 'default', key, session, params FROM creations;
DROP TABLE creations;
ALTER TABLE creations_of_tenants RENAME TO creations;
