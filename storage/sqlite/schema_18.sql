-- Version 18: sessions are found by their agent.

ALTER TABLE sessions ADD COLUMN agent TEXT;  -- the name of its agent; NULL: it has none
UPDATE sessions SET agent = details ->> '$.agent.name' WHERE json_valid(details) AND details ->> '$.agent.name' IS NOT NULL;
CREATE INDEX sessions_of_agent ON sessions (tenant, agent, state, updated_at DESC, session_id) WHERE agent IS NOT NULL;
