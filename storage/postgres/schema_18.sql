-- Version 18: the audit. Rows are only added: the triggers refuse all else, but to retention, which says that it is it.

CREATE TABLE warren.audit (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         bigint NOT NULL,
    tenant     text COLLATE "C",  -- NULL: a client that was not let in
    who        text NOT NULL,
    action     text NOT NULL,
    outcome    text NOT NULL,
    session_id text COLLATE "C",
    node       text,
    source     text,
    details    text NOT NULL  -- JSON
);
CREATE INDEX audit_of_tenant ON warren.audit (tenant, at, number);
CREATE INDEX audit_at ON warren.audit (at, number);

CREATE FUNCTION warren.keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('warren.retention', true) = 'audit' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'entries of the audit cannot be changed, and are removed by retention alone';
END
$$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON warren.audit FOR EACH ROW EXECUTE FUNCTION warren.keep_audit();
CREATE TRIGGER keep_all BEFORE TRUNCATE ON warren.audit FOR EACH STATEMENT EXECUTE FUNCTION warren.keep_audit();

-- As in version 13. An entry of no tenant is for those who read all of them.
CREATE POLICY of_tenant ON warren.audit USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.audit ENABLE ROW LEVEL SECURITY;

-- The tokens of the table, by their names: no hash. `who` is not known to the database.
CREATE FUNCTION warren.audit_token() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    token warren.tokens := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO warren.audit (at, tenant, who, action, outcome, details) VALUES (
        (extract(epoch FROM clock_timestamp()) * 1000000)::int8, token.tenant, '',
        CASE TG_OP WHEN 'INSERT' THEN 'token_added' WHEN 'DELETE' THEN 'token_removed' ELSE 'token_changed' END, 'done',
        jsonb_strip_nulls(jsonb_build_object('name', token.name, 'scopes', array_to_string(token.scopes, ' '),
            'expires', to_char(token.expires AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')))::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON warren.tokens
    FOR EACH ROW EXECUTE FUNCTION warren.audit_token();
