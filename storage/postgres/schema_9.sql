-- Version 9: the keys under which sessions were created are unique within a tenant.

CREATE UNIQUE INDEX CONCURRENTLY creations_keys ON warren.creations (key, tenant)
