-- Version 13: the rows that a caller's tenant may read. The roles `warren_reader_N` see nothing else, and no row at all
-- without a tenant; for all other roles nothing changes, whether they own the tables or not. See guard.py.

CREATE FUNCTION warren.tenant() RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    -- After a transaction that has set it, an unset one is an empty text.
    IF coalesce(current_setting('warren.tenant', true), '') = '' THEN
        RAISE insufficient_privilege USING MESSAGE = 'a reader has to set warren.tenant';
    END IF;
    RETURN current_setting('warren.tenant');
END
$$;
DO $$
DECLARE
    name text;
    seen text;
BEGIN
    -- What a condition reads of another table is behind that table's own condition.
    FOR name, seen IN VALUES
        ('sessions', 'tenant = (SELECT warren.tenant())'),
        ('creations', 'tenant = (SELECT warren.tenant())'),
        ('memory_sessions', 'tenant = (SELECT warren.tenant())'),
        ('messages', 'EXISTS (SELECT FROM warren.sessions s WHERE s.key = session)'),
        ('compactions', 'EXISTS (SELECT FROM warren.sessions s WHERE s.key = session)'),
        ('events', 'EXISTS (SELECT FROM warren.sessions s WHERE s.key = session)'),
        ('inbox', 'EXISTS (SELECT FROM warren.sessions s WHERE s.key = session)'),
        ('memory_entries', 'EXISTS (SELECT FROM warren.memory_sessions s WHERE s.key = session)'),
        ('holders', '(SELECT warren.tenant()) IS NOT NULL')
    LOOP
        EXECUTE format('CREATE POLICY of_tenant ON warren.%I USING (
            CASE WHEN starts_with(current_user::text, ''warren_reader_'') THEN %s ELSE true END)', name, seen);
        EXECUTE format('ALTER TABLE warren.%I ENABLE ROW LEVEL SECURITY', name);
    END LOOP;
END
$$;
