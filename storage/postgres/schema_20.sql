-- Version 20: the tokens that count for the limit of one client are told apart in the ledger. The key changes in one
-- step: no release has written the table under the key of version 16.

ALTER TABLE warren.usage ADD COLUMN payer text COLLATE "C" NOT NULL DEFAULT '';  -- '' is all others
ALTER TABLE warren.usage DROP CONSTRAINT usage_pkey, ADD PRIMARY KEY (tenant, hour, payer, model, holder);
