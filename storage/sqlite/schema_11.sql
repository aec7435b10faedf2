-- Version 11: the process that attached a file, until a start of a later one has seen that its session names the file.

ALTER TABLE attachments ADD COLUMN holder INTEGER;
