-- Version 10: they are unique within a tenant alone. The key comes first in both indexes: releases that know no tenants
-- search by it, and all that they write is of one tenant, so that for them nothing changes.

DROP INDEX warren.sessions_peer;
ALTER INDEX warren.sessions_names RENAME TO sessions_peer;
ALTER TABLE warren.creations DROP CONSTRAINT creations_pkey,
    ADD CONSTRAINT creations_pkey PRIMARY KEY USING INDEX creations_keys;
