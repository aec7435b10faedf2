-- The tenant of each session, and what BM25 has to know of the texts of each tenant.

ALTER TABLE sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
CREATE INDEX sessions_tenant ON sessions (tenant);

CREATE TABLE tenants (
    name    TEXT    PRIMARY KEY,
    entries INTEGER NOT NULL,
    terms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO tenants SELECT 'default', entries, terms FROM totals;
