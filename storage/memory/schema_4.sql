-- Texts that somebody had removed: the same messages are not remembered again.

CREATE TABLE tombstones (
    session  INTEGER NOT NULL,
    position INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    PRIMARY KEY (session, position)
) STRICT;
