-- Version 29: inputs that wait for a time.

ALTER TABLE warren.inbox ADD COLUMN not_before bigint;  -- NULL: no turn has to wait for it
