-- Version 6: the tenant that a session belongs to, and the principal that created it.

-- Releases that do not know the columns write sessions of the default.
ALTER TABLE warren.sessions ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT 'default';
ALTER TABLE warren.sessions ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT 'local';
ALTER TABLE warren.creations ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT 'default';
