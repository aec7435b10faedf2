-- Version 17: inputs that wait for a time.

ALTER TABLE inbox ADD COLUMN not_before INTEGER;  -- microseconds since 1970; NULL: it waits for no time
CREATE INDEX inbox_begins ON inbox (not_before, session) WHERE outcome IS NULL AND starts;
