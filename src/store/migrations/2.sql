-- From schema 1 to 2: pruning of history.

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
