-- What is remembered: texts, their terms, their vectors. All but the vectors' graph, which is a cache beside this file.

CREATE TABLE identity (
    store TEXT NOT NULL             -- tells this file from others: a saved graph belongs to one
) STRICT;
INSERT INTO identity VALUES (lower(hex(randomblob(16))));

CREATE TABLE totals (               -- one row, kept with every change: what BM25 has to know of all texts
    entries INTEGER NOT NULL,
    terms   INTEGER NOT NULL
) STRICT;
INSERT INTO totals VALUES (0, 0);

CREATE TABLE sessions (
    key        INTEGER PRIMARY KEY,
    session_id TEXT    NOT NULL UNIQUE,
    entries    INTEGER NOT NULL DEFAULT 0,
    forgotten  INTEGER NOT NULL DEFAULT 0   -- 1: its memories were removed, and none may come back
) STRICT;

CREATE TABLE entries (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,   -- the graph's key: never given out twice
    session    INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,    -- microseconds since 1970, UTC
    terms      BLOB    NOT NULL,    -- hashes of its words in order, four bytes each; before the text, which can be long
    content    TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX entries_position ON entries (session, position);

CREATE TABLE spaces (               -- embedders that have made vectors
    key  INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE vectors (
    space INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    body  BLOB    NOT NULL,
    PRIMARY KEY (space, entry)
) STRICT, WITHOUT ROWID;

-- Of each entry the terms, as hexadecimal words, and its session's mark.
CREATE VIRTUAL TABLE words USING fts5(terms, content='', contentless_delete=1, tokenize='ascii');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, row);
