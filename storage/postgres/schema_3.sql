-- Version 3: what each process says of itself, and the secret by which processes of one store know each other.

ALTER TABLE warren.holders ADD COLUMN status text;                           -- JSON; NULL: a process of an older release
ALTER TABLE warren.holders ADD COLUMN leaves boolean NOT NULL DEFAULT false; -- it was asked to drain
-- A process that was cut off from the database, as all are when the server starts anew, takes nobody for dead until
-- `judges_from` that was alive at `saw_at`: the others may be just as late.
ALTER TABLE warren.holders ADD COLUMN judges_from timestamptz;
ALTER TABLE warren.holders ADD COLUMN saw_at timestamptz;
ALTER TABLE warren.meta ADD COLUMN secret text;
