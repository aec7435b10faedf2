-- Version 22: the entries of the audit about tokens have their limits, as `sessions=5 tokens_per_day=1000`.

CREATE OR REPLACE FUNCTION warren.audit_token() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    token warren.tokens := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    limits text := (
        SELECT string_agg(key || '=' || value, ' ' ORDER BY key COLLATE "C") FROM jsonb_each_text(
            CASE jsonb_typeof(token.limits) WHEN 'object' THEN jsonb_strip_nulls(token.limits) ELSE '{}' END));
BEGIN
    INSERT INTO warren.audit (at, tenant, who, action, outcome, details) VALUES (
        (extract(epoch FROM clock_timestamp()) * 1000000)::int8, token.tenant, '',
        CASE TG_OP WHEN 'INSERT' THEN 'token_added' WHEN 'DELETE' THEN 'token_removed' ELSE 'token_changed' END, 'done',
        jsonb_strip_nulls(jsonb_build_object('name', token.name, 'scopes', array_to_string(token.scopes, ' '),
            'limits', limits,
            'expires', to_char(token.expires AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')))::text);
    RETURN NULL;
END
$$;
