-- The part of a batch's output tokens that is reasoning.

ALTER TABLE batches ADD COLUMN reasoning_tokens BIGINT NOT NULL DEFAULT 0;
