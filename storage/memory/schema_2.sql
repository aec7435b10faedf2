-- Sessions of which something was taken in that their store may never have committed: looked at again later.

CREATE TABLE unsettled (
    session INTEGER PRIMARY KEY,
    since   INTEGER NOT NULL        -- microseconds since 1970, UTC
) STRICT;
