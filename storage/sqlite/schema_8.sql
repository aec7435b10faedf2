-- Version 8: the ledger: the use of models by tenant, hour and model. No session owns a row, so it outlives them.

CREATE TABLE usage (
    tenant                TEXT NOT NULL,
    hour                  INTEGER NOT NULL,  -- its beginning
    model                 TEXT NOT NULL,
    holder                INTEGER NOT NULL,  -- 0 here; in a database each process has rows of its own
    turns                 INTEGER NOT NULL,
    input_tokens          INTEGER NOT NULL,
    output_tokens         INTEGER NOT NULL,
    cache_read_tokens     INTEGER NOT NULL,
    cache_creation_tokens INTEGER NOT NULL,
    unpriced_tokens       INTEGER NOT NULL,  -- of calls whose price is unknown
    priced                TEXT NOT NULL      -- US dollars of the others, a decimal number
) STRICT;
CREATE UNIQUE INDEX usage_by_hour ON usage (tenant, hour, model, holder);
