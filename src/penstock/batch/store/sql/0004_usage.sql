-- Who used what, per hour: a row per hour, caller, model, endpoint and end. Unix time in hours.

CREATE TABLE usage (
  hour BIGINT NOT NULL,
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  user_name TEXT NOT NULL,
  model TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  reason TEXT NOT NULL,
  requests BIGINT NOT NULL,
  prompt_tokens BIGINT NOT NULL,
  cached_tokens BIGINT NOT NULL,
  completion_tokens BIGINT NOT NULL,
  unreported BIGINT NOT NULL,
  estimated_tokens BIGINT NOT NULL,
  lease_s DOUBLE PRECISION NOT NULL,
  waits BIGINT NOT NULL,
  wait_s DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (hour, tenant, key, user_name, model, endpoint, reason)
);

-- The number of each gateway's last addition, so that one whose answer was lost is not added twice.
CREATE TABLE usage_writers (
  writer TEXT PRIMARY KEY,
  number BIGINT NOT NULL,
  at DOUBLE PRECISION NOT NULL
);
