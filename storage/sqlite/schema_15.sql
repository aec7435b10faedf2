-- Version 15: the secret with which completion tokens are signed. Unlike that of the nodes it goes along into copies.

ALTER TABLE cluster ADD COLUMN completions TEXT;
