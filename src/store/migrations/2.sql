-- From schema 1 to 2: pruning of history, cleaning of nodes, backups.

ALTER TABLE boot ADD COLUMN copied INTEGER NOT NULL DEFAULT 0 CHECK (copied IN (0, 1));

ALTER TABLE nodes ADD COLUMN cleans INTEGER NOT NULL DEFAULT 0 CHECK (cleans IN (0, 1));

-- Nodes that are being cleaned: unavailable from the end of a lease until their agent, or an operator, says that they
-- are clean.
CREATE TABLE cleanings (
    node_id   TEXT PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
    cleaning  TEXT NOT NULL,                -- its name, told to the agent and expected back
    run_id    TEXT NOT NULL,                -- whose lease ended
    since     INTEGER NOT NULL,
    failure   TEXT,                         -- why it failed: then the node drains for that reason
    failed_by TEXT,                         -- the life of the agent that failed at it, and is not asked again
    failed_at INTEGER,
    CONSTRAINT failed_wholly CHECK ((failure IS NULL) = (failed_by IS NULL) AND (failure IS NULL) = (failed_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Pruning: the oldest sealed record.
CREATE INDEX records_sealed ON records (sealed_at) WHERE sealed_at IS NOT NULL;

-- What is left of a run that was pruned: its id is never given again.
CREATE TABLE pruned_runs (
    run_id          TEXT PRIMARY KEY,
    contract_sha256 BLOB NOT NULL,          -- of the contract in canonical form
    ended_at        INTEGER NOT NULL,
    pruned_at       INTEGER NOT NULL,
    has_files       INTEGER NOT NULL CHECK (has_files IN (0, 1)) -- until its folders are removed, too
) STRICT, WITHOUT ROWID;
-- Pruning: whose files are still there.
CREATE INDEX pruned_runs_files ON pruned_runs (run_id) WHERE has_files = 1;

-- One row: up to which event the list may have gaps. Whoever resumes from before it has to look anew.
CREATE TABLE pruned_events (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
INSERT INTO pruned_events (one, last) VALUES (1, 0);
