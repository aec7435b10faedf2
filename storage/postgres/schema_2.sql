-- Version 2: the memory. The table of its vectors is made when an embedder needs it, as it needs pgvector.

CREATE TABLE warren.memory_sessions (
    key             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id      text COLLATE "C" NOT NULL UNIQUE,
    entries         bigint NOT NULL DEFAULT 0,
    forgotten       boolean NOT NULL DEFAULT false,  -- its memories were removed, and none may come back
    unsettled_since bigint                           -- something was taken in then that may never have been committed
) WITH (fillfactor = 80);
CREATE INDEX memory_unsettled ON warren.memory_sessions (unsettled_since) WHERE unsettled_since IS NOT NULL;

CREATE TABLE warren.memory_entries (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session    bigint NOT NULL,
    position   bigint NOT NULL,
    turn       bigint NOT NULL,
    created_at bigint NOT NULL,
    terms      bytea NOT NULL,  -- hashes of its words in order, four bytes each, the lowest first
    content    text NOT NULL,
    UNIQUE (session, position)
);

-- Each term of each entry. All that a search asks for is in the index.
CREATE TABLE warren.memory_postings (
    entry  bigint NOT NULL,
    term   integer NOT NULL,   -- the hash, as a number with a sign
    times  smallint NOT NULL,
    length smallint NOT NULL,  -- terms of the entry; both are 32,767 at most
    PRIMARY KEY (term, entry) INCLUDE (times, length)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- Counts of all entries and all their terms, as sums: with one row for all, each writer would wait for every other.
CREATE TABLE warren.memory_totals (
    slot    smallint PRIMARY KEY,
    entries bigint NOT NULL DEFAULT 0,
    terms   bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO warren.memory_totals (slot) SELECT generate_series(0, 15);

-- Embedders that have made vectors.
CREATE TABLE warren.memory_spaces (
    key  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);
