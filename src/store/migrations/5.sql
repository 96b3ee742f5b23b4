-- From schema 4 to 5: a queued run is fewer rows. What was in `records` is in the run's own row, the queue's order by
-- shape and its counts are in the writer's memory, and what lists of ended runs need is kept when a run ends.

ALTER TABLE runs ADD COLUMN sealed_at INTEGER;
ALTER TABLE runs ADD COLUMN manifest_sha256 TEXT;
UPDATE runs SET sealed_at = records.sealed_at, manifest_sha256 = records.manifest_sha256
    FROM records WHERE records.run_id = runs.run_id AND records.sealed_at IS NOT NULL;
DROP TABLE records;
DROP TABLE waiting;

DROP INDEX runs_waiting_shape;
DROP INDEX runs_waiting;
DROP INDEX runs_state;
DROP INDEX runs_principal_state;
CREATE INDEX runs_waiting ON runs (arrival, priority, principal) WHERE state = 'QUEUED';
CREATE INDEX runs_ended ON runs (state, arrival, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_principal_ended ON runs (principal, state, arrival, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_owed ON runs (arrival) WHERE ended_at IS NOT NULL AND sealed_at IS NULL;
CREATE INDEX runs_sealed ON runs (sealed_at) WHERE sealed_at IS NOT NULL;

-- Only what is checked is new: the definition is written over, as SQLite's page on ALTER TABLE says (section 7).
UPDATE sqlite_schema SET sql = 'CREATE TABLE runs (
    arrival      INTEGER PRIMARY KEY,       -- the order of arrival, given by the writer; never used twice (I7)
    run_id       TEXT NOT NULL UNIQUE,      -- ours begin with the time: rows that come together lie together
    state        TEXT NOT NULL CHECK
        (state = ''QUEUED'' OR state = ''RUNNING'' OR state = ''SUCCEEDED'' OR state = ''FAILED'' OR state = ''CANCELLED''),
    principal    TEXT NOT NULL,
    name         TEXT,
    work         TEXT,
    priority     INTEGER NOT NULL,
    contract     TEXT NOT NULL,             -- canonical JSON of the body as received; promotion reads it
    shape        INTEGER NOT NULL,          -- hash of what it requires: runs of one shape fit or do not fit together
    assigned     TEXT,                      -- [{"as", "nodes": [{"node_id", "label", "attrs"}]}]
    reject       TEXT,                      -- why no known nodes could ever do it
    verdict      TEXT,                      -- {"kind", "detail", "step", "node"}
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER,
    queue_until  INTEGER NOT NULL,          -- the end of its time in the queue
    ends_by      INTEGER NOT NULL,          -- the end of its time limit, once it runs
    holder_until INTEGER NOT NULL,          -- the deadline of whoever holds or attends it
    holder_grace INTEGER NOT NULL DEFAULT 0, -- starts of the daemon in a row that moved it without a sign
    sealed_at    INTEGER,                   -- when its record was made immutable (I9)
    manifest_sha256 TEXT,                   -- of the sealed manifest.json, which has that of every other file
    CONSTRAINT ended_iff_terminal CHECK ((ended_at IS NULL) = (state = ''QUEUED'' OR state = ''RUNNING'')),
    CONSTRAINT verdict_iff_terminal CHECK ((verdict IS NOT NULL) = (ended_at IS NOT NULL)),
    CONSTRAINT queued_holds_nothing CHECK (state <> ''QUEUED'' OR (assigned IS NULL AND started_at IS NULL)), -- I4
    CONSTRAINT running_is_assigned CHECK (state <> ''RUNNING'' OR (assigned IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT sealed_with_its_manifest CHECK ((sealed_at IS NULL) = (manifest_sha256 IS NULL)),
    CONSTRAINT sealed_has_ended CHECK (sealed_at IS NULL OR ended_at IS NOT NULL)
) STRICT'
    WHERE type = 'table' AND name = 'runs';
