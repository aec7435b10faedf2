-- Version 10: the audit. Rows are only added: the triggers refuse all else, but to retention, which takes them away for
-- its transaction.

CREATE TABLE audit (
    number     INTEGER PRIMARY KEY,  -- the newest row is never removed, so no number is given twice
    at         INTEGER NOT NULL,     -- microseconds since 1970 UTC
    tenant     TEXT,                 -- NULL: a client that was not let in
    who        TEXT NOT NULL,
    action     TEXT NOT NULL,
    outcome    TEXT NOT NULL,
    session_id TEXT,
    node       TEXT,
    source     TEXT,
    details    TEXT NOT NULL         -- JSON
) STRICT;
CREATE INDEX audit_of_tenant ON audit (tenant, at);
CREATE INDEX audit_at ON audit (at);

CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'entries of the audit cannot be changed');
END;
CREATE TRIGGER audit_replaced BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE number = NEW.number) BEGIN
    SELECT RAISE(ABORT, 'entries of the audit cannot be changed');
END;
CREATE TRIGGER audit_kept BEFORE DELETE ON audit BEGIN
    SELECT RAISE(ABORT, 'entries of the audit are removed by retention alone');
END;
