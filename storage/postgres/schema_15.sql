-- Version 15: the limits of the clients of a token.

ALTER TABLE warren.tokens ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
