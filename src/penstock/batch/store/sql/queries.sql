-- Every statement of the store, by name. `:name` is a parameter. What stands in /*postgres: … */ is for PostgreSQL,
-- where several gateways write at once; SQLite has one writer.

-- name: add_file
INSERT INTO files (id, tenant, kind, filename, bytes, lines, created_at, expires_at, status, details, batch, runner)
VALUES (:id, :tenant, :kind, :filename, :bytes, :lines, :created_at, :expires_at, :status, :details, :batch, :runner)

-- name: usage_of
SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE tenant = :tenant AND status <> 'gone'

-- name: add_chunk
INSERT INTO chunks (file, seq, data) VALUES (:file, :seq, :data)

-- name: end_upload
UPDATE files SET filename = :filename, expires_at = :expires_at, bytes = :bytes, lines = :lines, status = :status,
  details = :details
WHERE id = :id AND status = 'uploading'

-- name: file
SELECT id, tenant, kind, filename, bytes, lines, created_at, expires_at, status, details, batch
FROM files WHERE id = :id AND tenant = :tenant AND status IN ('processed', 'error')
AND (expires_at IS NULL OR expires_at > :now)

-- name: files_down
SELECT id, tenant, kind, filename, bytes, lines, created_at, expires_at, status, details, batch
FROM files WHERE tenant = :tenant AND status IN ('processed', 'error') AND (expires_at IS NULL OR expires_at > :now)
AND (:any_kind = 1 OR kind = :kind OR kind = :other_kind)
AND (:first = 1 OR (created_at, id) < (:after_at, :after_id))
ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: files_up
SELECT id, tenant, kind, filename, bytes, lines, created_at, expires_at, status, details, batch
FROM files WHERE tenant = :tenant AND status IN ('processed', 'error') AND (expires_at IS NULL OR expires_at > :now)
AND (:any_kind = 1 OR kind = :kind OR kind = :other_kind)
AND (:first = 1 OR (created_at, id) > (:after_at, :after_id))
ORDER BY created_at, id LIMIT :limit

-- name: users_of_file
SELECT COUNT(*) FROM batches WHERE input_file = :id AND ended_at IS NULL

-- name: drop_file
UPDATE files SET status = 'gone' WHERE id = :id

-- name: drop_expired
-- What an open batch still reads stays until that one has ended.
UPDATE files SET status = 'gone' WHERE status <> 'gone' AND expires_at <= :now
AND NOT EXISTS (SELECT 1 FROM batches WHERE input_file = files.id AND ended_at IS NULL)

-- name: drop_lost_uploads
-- Those whose gateway is gone; of a gateway that does not tell its name, those of a day ago.
UPDATE files SET status = 'gone' WHERE status = 'uploading' AND ((runner IS NULL AND created_at <= :before)
  OR runner NOT IN (SELECT name FROM runners WHERE until > :now AND until <= :far))

-- name: chunks
SELECT data FROM chunks WHERE file = :file AND seq BETWEEN :first AND :last ORDER BY seq

-- name: gone
SELECT id, kind, batch FROM files WHERE status = 'gone' LIMIT 1

-- name: erase_chunks
DELETE FROM chunks WHERE file = :file AND seq IN (SELECT seq FROM chunks WHERE file = :file LIMIT :limit)

-- name: erase_results
UPDATE items SET result = NULL WHERE batch = :batch AND line IN
(SELECT line FROM items WHERE batch = :batch AND state = :state AND result IS NOT NULL LIMIT :limit)

-- name: erase_file
DELETE FROM files WHERE id = :id

-- name: open_usage_of
SELECT COUNT(*), COALESCE(SUM(total), 0) FROM batches WHERE tenant = :tenant AND ended_at IS NULL

-- name: add_batch
INSERT INTO batches (id, tenant, user_name, endpoint, input_file, time_window, created_at, deadline, status, keep_s,
  total, completed, failed, output_bytes, error_bytes, input_tokens, cached_tokens, output_tokens,
  metadata, models, problems, times, rights, reasoning_tokens)
VALUES (:id, :tenant, :user, :endpoint, :input_file, :window, :created_at, :deadline, :status, :keep_s,
  :total, 0, 0, 0, 0, 0, 0, 0, :metadata, :models, :problems, :times, :rights, 0)

-- name: batch
SELECT id, tenant, user_name, endpoint, input_file, time_window, created_at, deadline, status, output_file, error_file,
  keep_s, total, completed, failed, output_bytes, error_bytes, input_tokens, cached_tokens, output_tokens,
  metadata, models, problems, times, rights, reasoning_tokens
FROM batches WHERE id = :id

-- name: batch_to_change
SELECT id, tenant, user_name, endpoint, input_file, time_window, created_at, deadline, status, output_file, error_file,
  keep_s, total, completed, failed, output_bytes, error_bytes, input_tokens, cached_tokens, output_tokens,
  metadata, models, problems, times, rights, reasoning_tokens
FROM batches WHERE id = :id /*postgres: FOR UPDATE */

-- name: batches
SELECT id, tenant, user_name, endpoint, input_file, time_window, created_at, deadline, status, output_file, error_file,
  keep_s, total, completed, failed, output_bytes, error_bytes, input_tokens, cached_tokens, output_tokens,
  metadata, models, problems, times, rights, reasoning_tokens
FROM batches WHERE tenant = :tenant AND (:first = 1 OR (created_at, id) < (:after_at, :after_id))
ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: open_batches
SELECT id, tenant, user_name, endpoint, input_file, time_window, created_at, deadline, status, output_file, error_file,
  keep_s, total, completed, failed, output_bytes, error_bytes, input_tokens, cached_tokens, output_tokens,
  metadata, models, problems, times, rights, reasoning_tokens
FROM batches WHERE ended_at IS NULL ORDER BY deadline, created_at, id LIMIT :limit

-- name: take_batch
-- One gateway reads a batch's file or makes its end; another may take over when that one is gone.
UPDATE batches SET handler = :runner WHERE id = :id AND status = :status AND (handler IS NULL OR handler = :runner
  OR handler NOT IN (SELECT name FROM runners WHERE until > :now AND until <= :far))

-- name: move_batch
UPDATE batches SET status = :status, times = :times, ended_at = :ended_at, total = :total, models = :models,
  problems = :problems, output_file = :output_file, error_file = :error_file WHERE id = :id

-- name: count_results
UPDATE batches SET completed = completed + :completed, failed = failed + :failed,
  output_bytes = output_bytes + :output_bytes, error_bytes = error_bytes + :error_bytes,
  input_tokens = input_tokens + :input_tokens, cached_tokens = cached_tokens + :cached_tokens,
  output_tokens = output_tokens + :output_tokens, reasoning_tokens = reasoning_tokens + :reasoning_tokens WHERE id = :id

-- name: forgotten
SELECT id FROM batches WHERE ended_at <= :before
AND NOT EXISTS (SELECT 1 FROM files WHERE files.batch = batches.id) LIMIT 1

-- name: erase_batch
DELETE FROM batches WHERE id = :id

-- name: without_files
-- Ended batches whose items serve no file any more.
SELECT id FROM batches WHERE ended_at IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM files WHERE files.batch = batches.id)
AND EXISTS (SELECT 1 FROM items WHERE items.batch = batches.id) LIMIT 1

-- name: add_item
INSERT INTO items (batch, line, custom_id, model, prefix, at, size, state, attempts)
VALUES (:batch, :line, :custom_id, :model, :prefix, :at, :size, 0, 0)

-- name: erase_items
DELETE FROM items WHERE batch = :batch AND line IN (SELECT line FROM items WHERE batch = :batch LIMIT :limit)

-- name: claim
UPDATE items SET state = 1, runner = :runner WHERE batch = :batch AND line IN (
  SELECT line FROM items WHERE batch = :batch AND model = :model AND state = 0
  ORDER BY prefix, line LIMIT :limit /*postgres: FOR UPDATE SKIP LOCKED */)
AND EXISTS (SELECT 1 FROM batches WHERE id = :batch AND status = 'in_progress')
RETURNING line, custom_id, model, prefix, at, size, attempts

-- name: end_item
UPDATE items SET state = :state, result = :result, runner = NULL
WHERE batch = :batch AND line = :line AND state = 1 AND runner = :runner

-- name: give_back
UPDATE items SET state = 0, runner = NULL, attempts = attempts + :attempts
WHERE batch = :batch AND line = :line AND state = 1 AND runner = :runner

-- name: pending
SELECT line, custom_id, model, prefix, at, size, attempts FROM items
WHERE batch = :batch AND state = 0 LIMIT :limit /*postgres: FOR UPDATE */

-- name: end_pending
UPDATE items SET state = 3, result = :result WHERE batch = :batch AND line = :line AND state = 0

-- name: results
SELECT line, result FROM items WHERE batch = :batch AND line > :after AND state = :state AND result IS NOT NULL
ORDER BY line LIMIT :limit

-- name: beat
INSERT INTO runners (name, until) VALUES (:runner, :until)
ON CONFLICT (name) DO UPDATE SET until = excluded.until

-- name: release_lost
UPDATE items SET state = 0, runner = NULL
WHERE state = 1 AND runner NOT IN (SELECT name FROM runners WHERE until > :now AND until <= :far)

-- name: forget_runners
DELETE FROM runners WHERE until <= :now

-- name: forget_all_runners
DELETE FROM runners

-- name: add_key
-- Another gateway may have given the name in the same moment.
INSERT INTO api_keys (name, tenant, hash, rights, created_at, expires_at)
VALUES (:name, :tenant, :hash, :rights, :created_at, :expires_at) ON CONFLICT DO NOTHING

-- name: change_key
UPDATE api_keys SET rights = :rights WHERE name = :name

-- name: erase_key
DELETE FROM api_keys WHERE name = :name

-- name: keys
SELECT name, tenant, hash, rights, created_at, expires_at FROM api_keys ORDER BY created_at, name

-- name: count_keys
SELECT COUNT(*) FROM api_keys

-- name: keys_changed
UPDATE key_changes SET last = :last

-- name: key_changes
SELECT last FROM key_changes

-- name: next_usage
-- Changes no row if this addition, or a later one, was made already.
INSERT INTO usage_writers (writer, number, at) VALUES (:writer, :number, :now)
ON CONFLICT (writer) DO UPDATE SET number = excluded.number, at = excluded.at
WHERE usage_writers.number < excluded.number

-- name: add_usage
INSERT INTO usage VALUES (:hour, :tenant, :key, :user, :model, :endpoint, :reason, :requests, :prompt_tokens,
  :cached_tokens, :completion_tokens, :unreported, :estimated_tokens, :lease_s, :waits, :wait_s, :interrupted,
  :estimated_completion)
ON CONFLICT (hour, tenant, key, user_name, model, endpoint, reason) DO UPDATE SET
  requests = usage.requests + excluded.requests,
  prompt_tokens = usage.prompt_tokens + excluded.prompt_tokens,
  cached_tokens = usage.cached_tokens + excluded.cached_tokens,
  completion_tokens = usage.completion_tokens + excluded.completion_tokens,
  unreported = usage.unreported + excluded.unreported,
  estimated_tokens = usage.estimated_tokens + excluded.estimated_tokens,
  lease_s = usage.lease_s + excluded.lease_s,
  waits = usage.waits + excluded.waits,
  wait_s = usage.wait_s + excluded.wait_s,
  interrupted = usage.interrupted + excluded.interrupted,
  estimated_completion = usage.estimated_completion + excluded.estimated_completion

-- name: usage
-- Sums over the parts that are not asked for. `hours`: 1, 24, or more than there are.
SELECT hour / :hours * :hours,
  CASE WHEN :by_tenant = 1 THEN tenant ELSE '' END,
  CASE WHEN :by_key = 1 THEN key ELSE '' END,
  CASE WHEN :by_user = 1 THEN user_name ELSE '' END,
  model,
  CASE WHEN :by_endpoint = 1 THEN endpoint ELSE '' END,
  reason,
  CAST(SUM(requests) AS BIGINT), CAST(SUM(prompt_tokens) AS BIGINT), CAST(SUM(cached_tokens) AS BIGINT),
  CAST(SUM(completion_tokens) AS BIGINT), CAST(SUM(unreported) AS BIGINT), CAST(SUM(estimated_tokens) AS BIGINT),
  SUM(lease_s), CAST(SUM(waits) AS BIGINT), SUM(wait_s), CAST(SUM(interrupted) AS BIGINT),
  CAST(SUM(estimated_completion) AS BIGINT)
FROM usage WHERE hour >= :since AND hour < :until
  AND (:any_tenant = 1 OR tenant = :tenant) AND (:any_key = 1 OR key = :key) AND (:any_user = 1 OR user_name = :user)
GROUP BY 1, 2, 3, 4, 5, 6, 7 LIMIT :limit

-- name: usage_hours
SELECT MIN(hour), MAX(hour) FROM usage WHERE hour >= :since AND hour < :until

-- name: old_usage
-- The last hour of a step that erases some of the oldest rows.
SELECT MAX(hour) FROM (SELECT hour FROM usage WHERE hour < :before ORDER BY hour LIMIT :limit) AS oldest

-- name: erase_usage
DELETE FROM usage WHERE hour <= :hour

-- name: forget_usage_writers
DELETE FROM usage_writers WHERE at < :before
