-- Version 16: the ledger: the use of models by tenant, hour and model. No session owns a row, so it outlives them.

CREATE TABLE warren.usage (
    tenant                text COLLATE "C" NOT NULL,
    hour                  bigint NOT NULL,   -- its beginning
    model                 text COLLATE "C" NOT NULL,
    holder                integer NOT NULL,  -- each process adds to rows of its own: none waits for the lock of another
    turns                 bigint NOT NULL,
    input_tokens          bigint NOT NULL,
    output_tokens         bigint NOT NULL,
    cache_read_tokens     bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    unpriced_tokens       bigint NOT NULL,   -- of calls whose price is unknown
    priced                numeric NOT NULL,  -- US dollars of the others
    PRIMARY KEY (tenant, hour, model, holder)
) WITH (fillfactor = 50);

CREATE POLICY of_tenant ON warren.usage USING (
    CASE WHEN starts_with(current_user::text, 'warren_reader_') THEN tenant = (SELECT warren.tenant()) ELSE true END);
ALTER TABLE warren.usage ENABLE ROW LEVEL SECURITY;
