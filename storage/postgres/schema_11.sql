-- Version 11: the tenant that the texts of a session belong to.

ALTER TABLE warren.memory_sessions ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT 'default';
