-- Version 12: the texts of a tenant.

CREATE INDEX CONCURRENTLY memory_of_tenant ON warren.memory_sessions (tenant)
