-- Version 7: the newest sessions of a tenant.

CREATE INDEX CONCURRENTLY sessions_of_tenant ON warren.sessions (tenant, state, updated_at DESC, session_id)
