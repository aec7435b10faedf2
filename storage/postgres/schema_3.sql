-- Version 3: what each process says of itself, and the secret by which processes of one store know each other.

ALTER TABLE warren.holders ADD COLUMN status text;                           -- JSON; NULL: a process of an older release
ALTER TABLE warren.holders ADD COLUMN leaves boolean NOT NULL DEFAULT false; -- it was asked to drain
ALTER TABLE warren.meta ADD COLUMN secret text;
