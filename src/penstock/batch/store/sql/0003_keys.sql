-- Keys that were made while a gateway ran. Of a key itself only the hash is here. `rights` is JSON.

CREATE TABLE api_keys (
  name TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  rights TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION
);

-- One row: another text after each change of the keys, by which a gateway sees that another one has changed them.
CREATE TABLE key_changes (
  last TEXT NOT NULL
);
INSERT INTO key_changes (last) VALUES ('');

-- What the key that made a batch may do; it holds for the batch's requests.
ALTER TABLE batches ADD COLUMN rights TEXT NOT NULL DEFAULT '{}';
