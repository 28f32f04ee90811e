-- The first schema, for SQLite and PostgreSQL. SQLite takes any name for a type; the names are PostgreSQL's.

CREATE TABLE files (
  id TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  kind TEXT NOT NULL,
  filename TEXT NOT NULL,
  bytes BIGINT NOT NULL,
  lines BIGINT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION,
  status TEXT NOT NULL,
  details TEXT,
  batch TEXT
);
CREATE INDEX files_of_tenant ON files (tenant, created_at, id);
CREATE INDEX files_expiring ON files (expires_at);
CREATE INDEX files_by_status ON files (status);

-- An input file's bytes, in pieces of one size, the last one excepted.
CREATE TABLE chunks (
  file TEXT NOT NULL,
  seq BIGINT NOT NULL,
  data BYTEA NOT NULL,
  PRIMARY KEY (file, seq)
);

CREATE TABLE batches (
  id TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  user_name TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  input_file TEXT NOT NULL,
  time_window TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  deadline DOUBLE PRECISION NOT NULL,
  status TEXT NOT NULL,
  output_file TEXT,
  error_file TEXT,
  keep_s DOUBLE PRECISION,
  total BIGINT NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  output_bytes BIGINT NOT NULL,
  error_bytes BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL,
  cached_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  metadata TEXT NOT NULL,
  models TEXT NOT NULL,
  problems TEXT NOT NULL,
  times TEXT NOT NULL,
  ended_at DOUBLE PRECISION,
  handler TEXT
);
CREATE INDEX batches_of_tenant ON batches (tenant, created_at, id);
CREATE INDEX batches_open ON batches (deadline) WHERE ended_at IS NULL;

-- state: 0 pending, 1 claimed by a runner, 2 completed, 3 failed. result: its line in the output or error file.
CREATE TABLE items (
  batch TEXT NOT NULL,
  line BIGINT NOT NULL,
  custom_id TEXT NOT NULL,
  model TEXT NOT NULL,
  prefix BIGINT NOT NULL,
  at BIGINT NOT NULL,
  size BIGINT NOT NULL,
  state BIGINT NOT NULL,
  attempts BIGINT NOT NULL,
  runner TEXT,
  result BYTEA,
  PRIMARY KEY (batch, line)
);
CREATE INDEX items_pending ON items (batch, model, prefix, line) WHERE state = 0;
CREATE INDEX items_claimed ON items (runner) WHERE state = 1;

-- Who runs items. A claim is as good as its runner's word, which has to be renewed.
CREATE TABLE runners (
  name TEXT PRIMARY KEY,
  until DOUBLE PRECISION NOT NULL
);
