-- From schema 2 to 3: what a write costs. Fewer indexes to keep, checks that compare one by one, owed seals by name.

ALTER TABLE records ADD COLUMN owed INTEGER NOT NULL DEFAULT 0;
UPDATE records SET owed = 1
    WHERE sealed_at IS NULL AND run_id IN (SELECT run_id FROM runs WHERE ended_at IS NOT NULL);
DROP INDEX records_open;
CREATE INDEX records_owed ON records (run_id) WHERE owed = 1;

DROP INDEX runs_principal;
DROP INDEX runs_created;
DROP INDEX runs_queue_until;
DROP INDEX runs_holder_until;
DROP INDEX steps_claimed_deadline;
CREATE INDEX runs_queue_until ON runs (queue_until) WHERE state = 'QUEUED' AND queue_until < 9007199254740991;
CREATE INDEX runs_holder_until ON runs (holder_until) WHERE ended_at IS NULL AND holder_until < 9007199254740991;
CREATE INDEX steps_claimed_deadline ON steps (deadline) WHERE state = 'CLAIMED' AND deadline < 9007199254740991;

-- Only what is checked changes, not what is stored: so the definitions are written over, as SQLite's page on ALTER TABLE
-- says (section 7), and no row is copied.
UPDATE sqlite_schema SET sql = 'CREATE TABLE runs (
    arrival      INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of arrival, given by the writer; never used twice (I7)
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
UPDATE sqlite_schema SET sql = 'CREATE TABLE steps (
    run_id     TEXT NOT NULL REFERENCES runs (run_id),
    seq        INTEGER NOT NULL,            -- counts from 1
    id         TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind = ''run'' OR kind = ''ask'' OR kind = ''acquire'' OR kind = ''hold''),
    uses       TEXT,                        -- the role of a run step
    needs      TEXT NOT NULL,               -- ["id", ..], normalised
    node_id    TEXT,                        -- where it runs; of an acquisition: what was had
    state      TEXT NOT NULL
        CHECK (state = ''PENDING'' OR state = ''CLAIMED'' OR state = ''ASKED'' OR state = ''DONE'' OR state = ''FAILED''
            OR state = ''SKIPPED'' OR state = ''CANCELLED''),
    ready      INTEGER NOT NULL DEFAULT 0 CHECK (ready IN (0, 1)), -- a run step that its node may claim
    attempt    INTEGER NOT NULL DEFAULT 1,
    instance   TEXT,                        -- the life of the node that claimed it (I11)
    started_at INTEGER,
    ended_at   INTEGER,
    deadline   INTEGER NOT NULL DEFAULT 9007199254740991, -- when the reaper ends it
    result     TEXT,                        -- {"exit_code"} | {"error"} | {"answer","by"} | {"acquired","node_id"}
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID'
    WHERE type = 'table' AND name = 'steps';
UPDATE sqlite_schema SET sql = 'CREATE TABLE records (
    run_id          TEXT PRIMARY KEY REFERENCES runs (run_id),
    opened_at       INTEGER NOT NULL,
    sealed_at       INTEGER,
    manifest_sha256 TEXT,                   -- of the sealed manifest.json, which has that of every other file
    owed            INTEGER NOT NULL DEFAULT 0 CHECK (owed IN (0, 1)), -- its run has ended, and the seal is lacking
    CONSTRAINT sealed_with_its_manifest CHECK ((sealed_at IS NULL) = (manifest_sha256 IS NULL)),
    CONSTRAINT sealed_is_not_owed CHECK (owed = 0 OR sealed_at IS NULL)
) STRICT, WITHOUT ROWID'
    WHERE type = 'table' AND name = 'records';
UPDATE sqlite_schema SET sql = 'CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id   TEXT NOT NULL UNIQUE,      -- the header webhook-id
    webhook      TEXT NOT NULL,             -- the name of the receiver in the configuration
    event        TEXT NOT NULL,
    run_id       TEXT,
    payload      TEXT NOT NULL,             -- the body, as it is sent every time
    state        TEXT NOT NULL DEFAULT ''pending'' CHECK (state = ''pending'' OR state = ''delivered'' OR state = ''failed''),
    attempts     INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    next_at      INTEGER NOT NULL,          -- when to send it (again)
    ended_at     INTEGER,                   -- when it was delivered, or given up
    last_error   TEXT,                      -- why the last attempt failed
    CONSTRAINT ended_iff_not_pending CHECK ((ended_at IS NULL) = (state = ''pending''))
) STRICT'
    WHERE type = 'table' AND name = 'outbox';
