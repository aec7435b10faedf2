-- Version 27: the secret with which completion tokens are signed. Unlike that of the nodes it goes along into copies.

ALTER TABLE warren.meta ADD COLUMN completions text;
