-- Version 8: names among peers are unique within a tenant.

CREATE UNIQUE INDEX CONCURRENTLY sessions_names ON warren.sessions (peer, tenant) WHERE peer IS NOT NULL AND state = 0
