-- Version 29: inputs that wait for a time.

ALTER TABLE warren.inbox ADD COLUMN not_before bigint;  -- microseconds since 1970; NULL: it waits for no time
DROP INDEX warren.inbox_begins;
CREATE INDEX inbox_begins ON warren.inbox (not_before, session) WHERE outcome IS NULL AND starts;
