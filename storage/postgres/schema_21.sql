-- Version 21: texts of the memory that somebody had removed: the same messages are not remembered again.

CREATE TABLE warren.memory_tombstones (
    session  bigint NOT NULL,
    position bigint NOT NULL,
    turn     bigint NOT NULL,
    PRIMARY KEY (session, position)
);
