-- Who takes an upload in: one whose gateway is gone is no upload any more, and keeps nobody's room.

ALTER TABLE files ADD COLUMN runner TEXT;
