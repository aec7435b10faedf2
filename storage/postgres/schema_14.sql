-- Version 14: the tokens of clients, by their hashes, and a number that changes with each change of them.

CREATE TABLE warren.tokens (
    hash    text COLLATE "C" PRIMARY KEY CHECK (hash ~ '^sha256:[0-9a-f]{64}$'),
    tenant  text COLLATE "C" NOT NULL,
    name    text NOT NULL,
    scopes  text[] NOT NULL,
    expires timestamptz,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE warren.tokens_version (
    number int8 NOT NULL
);
INSERT INTO warren.tokens_version VALUES (1);
CREATE FUNCTION warren.tokens_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE warren.tokens_version SET number = number + 1;
    RETURN NULL;
END
$$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON warren.tokens
    FOR EACH STATEMENT EXECUTE FUNCTION warren.tokens_changed();
