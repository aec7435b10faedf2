-- Version 5: sessions that one process asks another one to hand over.

CREATE TABLE requests (
    session INTEGER PRIMARY KEY,
    holder  INTEGER NOT NULL  -- the one that is asked; a request to another one than the session's holder is out of date
) STRICT;
