-- Version 19: the process that attached a file, until a start of a later one has seen that its session names the file.

ALTER TABLE warren.attachments ADD COLUMN holder int;
