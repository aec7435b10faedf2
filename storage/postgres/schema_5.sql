-- Version 5: followers look for changes after one that they know.

CREATE INDEX CONCURRENTLY sessions_changed ON warren.sessions (changed, key)
