-- From schema 3 to 4: the writer gives the numbers of runs and events, without SQLite's table of sequences.

CREATE TABLE pruned (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    last_event   INTEGER NOT NULL,          -- up to here events may have gaps: whoever resumes from before has to look anew
    last_arrival INTEGER NOT NULL           -- the largest of a run that was pruned
) STRICT;
INSERT INTO pruned (one, last_event, last_arrival)
    SELECT 1, last, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'runs'), 0) FROM pruned_events;
DROP TABLE pruned_events;
DELETE FROM sqlite_sequence WHERE name IN ('runs', 'events');

-- As in the step before: no row is copied.
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
    CONSTRAINT ended_iff_terminal CHECK ((ended_at IS NULL) = (state = ''QUEUED'' OR state = ''RUNNING'')),
    CONSTRAINT verdict_iff_terminal CHECK ((verdict IS NOT NULL) = (ended_at IS NOT NULL)),
    CONSTRAINT queued_holds_nothing CHECK (state <> ''QUEUED'' OR (assigned IS NULL AND started_at IS NULL)), -- I4
    CONSTRAINT running_is_assigned CHECK (state <> ''RUNNING'' OR (assigned IS NOT NULL AND started_at IS NOT NULL))
) STRICT'
    WHERE type = 'table' AND name = 'runs';
UPDATE sqlite_schema SET sql = 'CREATE TABLE events (
    id      INTEGER PRIMARY KEY,            -- given by the writer; never used twice
    at      INTEGER NOT NULL,
    event   TEXT NOT NULL,                  -- run.queued, step.claimed, node.silent, ...
    run_id  TEXT,
    seq     INTEGER,
    node_id TEXT,
    data    TEXT NOT NULL                   -- what else is to be said, as a JSON object
) STRICT'
    WHERE type = 'table' AND name = 'events';
