-- Version 17: inputs that wait for a time.

ALTER TABLE inbox ADD COLUMN not_before INTEGER;  -- NULL: no turn has to wait for it
