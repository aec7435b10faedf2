-- Version 30: sessions are found by their agent.

ALTER TABLE warren.sessions ADD COLUMN agent text COLLATE "C";  -- the name of its agent; NULL: it has none
UPDATE warren.sessions SET agent = substring(details FROM '"agent":\{"name":"([A-Za-z0-9_-]+)"')
WHERE strpos(details, '"agent":{"name":"') > 0;
CREATE INDEX sessions_of_agent ON warren.sessions (tenant, agent, state, updated_at DESC, session_id)
WHERE agent IS NOT NULL;
