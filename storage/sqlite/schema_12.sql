-- Version 12: the tokens that count for the limit of one client are told apart in the ledger.

ALTER TABLE usage ADD COLUMN payer TEXT NOT NULL DEFAULT '';  -- the client with a limit of its own; '' is all others
DROP INDEX usage_by_hour;
CREATE UNIQUE INDEX usage_by_hour ON usage (tenant, hour, payer, model, holder);
