-- Answers that broke off after some of their tokens, and the part of estimated tokens that was generated.

ALTER TABLE usage ADD COLUMN interrupted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN estimated_completion BIGINT NOT NULL DEFAULT 0;
