-- The schema of mediator's database, readable on its own.
--
-- Times are integers: milliseconds on the daemon's own scale, which is Unix time as long as nobody steps the wall
-- clock (src/clock.rs). A deadline that does not exist is 9007199254740991, never NULL: a NULL matches no `<=`, and
-- what waits for it would wait for ever. JSON columns are TEXT. Invariants (I1..I11) are listed in ARCHITECTURE.md.
-- CHECKs compare one by one: for a list of more than two, SQLite makes a table in memory at each insert and update.

-- One row, written first at every start, before anything is answered: what SQLite recovered after a kill is not yet
-- synced, and this commit syncs it. Every write transaction compares `number`, so that a second daemon cannot write.
CREATE TABLE boot (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    number       INTEGER NOT NULL,          -- grows by 1 at each start
    started_at   INTEGER NOT NULL,
    clock_offset INTEGER NOT NULL,          -- added to times on the scale when they are shown
    copied       INTEGER NOT NULL DEFAULT 0 CHECK (copied IN (0, 1)) -- a backup: the first start ends what was under way
) STRICT;

-- Who may call. Only the hash of a token is kept.
CREATE TABLE tokens (
    token_id   TEXT PRIMARY KEY,            -- the public part of the token
    principal  TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('operator')),
    hash       BLOB NOT NULL,               -- SHA-256 of the whole token
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

-- What a run can hold. One row a node, with its last advert and both sides of its draining.
CREATE TABLE nodes (
    node_id         TEXT PRIMARY KEY,
    label           TEXT,
    static          INTEGER NOT NULL CHECK (static IN (0, 1)),
    instance        TEXT,                   -- the life of its agent; NULL for a static node
    capabilities    TEXT NOT NULL,          -- [{"capability": "...", "attrs": {"...": "canonical text"}}]
    cleans          INTEGER NOT NULL DEFAULT 0 CHECK (cleans IN (0, 1)), -- its agent cleans it after every lease
    agent_version   TEXT,
    host            TEXT,
    created_at      INTEGER NOT NULL,
    last_seen       INTEGER NOT NULL,       -- the last advert; for a static node its declaration
    live_until      INTEGER NOT NULL,       -- from here on it is unavailable, marked silent or not
    silent          INTEGER NOT NULL DEFAULT 0 CHECK (silent IN (0, 1)), -- only an advert clears it
    settling_until  INTEGER NOT NULL DEFAULT 0, -- until then its agent may still be at work for an earlier lease
    owner_mode      TEXT CHECK (owner_mode IN ('graceful', 'at-boundary')),     -- drained by its owner
    owner_reason    TEXT,
    owner_since     INTEGER,
    operator_mode   TEXT CHECK (operator_mode IN ('graceful', 'at-boundary')),  -- drained by an operator
    operator_reason TEXT,
    operator_by     TEXT,
    operator_since  INTEGER,
    CONSTRAINT static_iff_no_instance CHECK (static = (instance IS NULL)),
    CONSTRAINT owner_drain_is_dated CHECK ((owner_mode IS NULL) = (owner_since IS NULL)),
    CONSTRAINT operator_drain_is_dated CHECK ((operator_mode IS NULL) = (operator_since IS NULL))
) STRICT, WITHOUT ROWID;
-- The reaper: which node falls silent next.
CREATE INDEX nodes_silence ON nodes (live_until) WHERE silent = 0 AND static = 0;
-- The reaper: where a settling ends next.
CREATE INDEX nodes_settling ON nodes (settling_until) WHERE settling_until > 0;

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

-- The lives of an agent that another has replaced, the last 16 a node: they are refused.
CREATE TABLE replaced_instances (
    node_id     TEXT NOT NULL REFERENCES nodes ON DELETE CASCADE,
    instance    TEXT NOT NULL,
    replaced_at INTEGER NOT NULL,
    PRIMARY KEY (node_id, instance)
) STRICT, WITHOUT ROWID;

-- Every run that was ever taken: placed, queued or rejected.
CREATE TABLE runs (
    arrival      INTEGER PRIMARY KEY,       -- the order of arrival, given by the writer; never used twice (I7)
    run_id       TEXT NOT NULL UNIQUE,      -- ours begin with the time: rows that come together lie together
    state        TEXT NOT NULL CHECK
        (state = 'QUEUED' OR state = 'RUNNING' OR state = 'SUCCEEDED' OR state = 'FAILED' OR state = 'CANCELLED'),
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
    CONSTRAINT ended_iff_terminal CHECK ((ended_at IS NULL) = (state = 'QUEUED' OR state = 'RUNNING')),
    CONSTRAINT verdict_iff_terminal CHECK ((verdict IS NOT NULL) = (ended_at IS NOT NULL)),
    CONSTRAINT queued_holds_nothing CHECK (state <> 'QUEUED' OR (assigned IS NULL AND started_at IS NULL)), -- I4
    CONSTRAINT running_is_assigned CHECK (state <> 'RUNNING' OR (assigned IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT sealed_with_its_manifest CHECK ((sealed_at IS NULL) = (manifest_sha256 IS NULL)),
    CONSTRAINT sealed_has_ended CHECK (sealed_at IS NULL OR ended_at IS NOT NULL)
) STRICT;
-- What waits: lists of it, and what counts the places before one. In the order of arrival, so that each is added at the end.
CREATE INDEX runs_waiting ON runs (arrival, priority, principal) WHERE state = 'QUEUED';
-- The reaper: the next of each deadline. The first is also the list of what runs.
CREATE INDEX runs_ends_by ON runs (ends_by) WHERE state = 'RUNNING';
CREATE INDEX runs_queue_until ON runs (queue_until) WHERE state = 'QUEUED' AND queue_until < 9007199254740991;
CREATE INDEX runs_holder_until ON runs (holder_until) WHERE ended_at IS NULL AND holder_until < 9007199254740991;
-- Lists of what has ended, newest first: kept when a run ends, so that one that begins to wait has one index to enter.
-- (`ended_at`: what the condition asks of the row is then in the index.)
CREATE INDEX runs_ended ON runs (state, arrival, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_principal_ended ON runs (principal, state, arrival, ended_at) WHERE ended_at IS NOT NULL;
-- Lists by work.
CREATE INDEX runs_work ON runs (work, arrival) WHERE work IS NOT NULL;
-- The sealer: whose record lacks its seal.
CREATE INDEX runs_owed ON runs (arrival) WHERE ended_at IS NOT NULL AND sealed_at IS NULL;
-- Pruning: the oldest sealed record.
CREATE INDEX runs_sealed ON runs (sealed_at) WHERE sealed_at IS NOT NULL;

-- The steps of every run, inserted by one routine at submission.
CREATE TABLE steps (
    run_id     TEXT NOT NULL REFERENCES runs (run_id),
    seq        INTEGER NOT NULL,            -- counts from 1
    id         TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind = 'run' OR kind = 'ask' OR kind = 'acquire' OR kind = 'hold'),
    uses       TEXT,                        -- the role of a run step
    needs      TEXT NOT NULL,               -- ["id", ..], normalised
    node_id    TEXT,                        -- where it runs; of an acquisition: what was had
    state      TEXT NOT NULL
        CHECK (state = 'PENDING' OR state = 'CLAIMED' OR state = 'ASKED' OR state = 'DONE' OR state = 'FAILED'
            OR state = 'SKIPPED' OR state = 'CANCELLED'),
    ready      INTEGER NOT NULL DEFAULT 0 CHECK (ready IN (0, 1)), -- a run step that its node may claim
    attempt    INTEGER NOT NULL DEFAULT 1,
    instance   TEXT,                        -- the life of the node that claimed it (I11)
    started_at INTEGER,
    ended_at   INTEGER,
    deadline   INTEGER NOT NULL DEFAULT 9007199254740991, -- when the reaper ends it
    result     TEXT,                        -- {"exit_code"} | {"error"} | {"answer","by"} | {"acquired","node_id"}
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
-- A claim: what is ready on this node.
CREATE INDEX steps_claimable ON steps (node_id, seq) WHERE state = 'PENDING' AND ready = 1;
-- A claim, an advert: what this node has in hand.
CREATE INDEX steps_in_hand ON steps (node_id) WHERE state = 'CLAIMED';
-- The inbox, oldest first.
CREATE INDEX steps_asked ON steps (started_at) WHERE state = 'ASKED';
-- The reaper: the next deadline of a step in hand, of a question.
CREATE INDEX steps_claimed_deadline ON steps (deadline) WHERE state = 'CLAIMED' AND deadline < 9007199254740991;
CREATE INDEX steps_asked_deadline ON steps (deadline) WHERE state = 'ASKED';

-- Every attempt that was begun, with the report on it and the answer it got: an equal report gets the same (I8).
CREATE TABLE attempts (
    run_id     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    node_id    TEXT,                        -- NULL for a question or a hold
    nonce      TEXT,                        -- of the lease it was claimed under
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    result     TEXT,
    report     TEXT,                        -- canonical JSON of the report that ended it
    answer     TEXT,                        -- the body that the report was answered with
    PRIMARY KEY (run_id, seq, attempt),
    FOREIGN KEY (run_id, seq) REFERENCES steps (run_id, seq)
) STRICT, WITHOUT ROWID;

-- Who has which node. The primary key is I1.
CREATE TABLE leases (
    node_id    TEXT PRIMARY KEY REFERENCES nodes,
    run_id     TEXT NOT NULL REFERENCES runs (run_id),
    nonce      TEXT NOT NULL,               -- the fencing token: 128 random bits, never used twice
    granted_at INTEGER NOT NULL,
    not_after  INTEGER NOT NULL,            -- may be given away after this, by a commit of the reaper
    reapable   INTEGER NOT NULL DEFAULT 1 CHECK (reapable IN (0, 1)), -- 0: a person or a holder has a deadline of its own
    grace      INTEGER NOT NULL DEFAULT 0   -- starts of the daemon in a row that moved it without a sign of its node
) STRICT, WITHOUT ROWID;
-- What a run holds.
CREATE INDEX leases_run ON leases (run_id);
-- The reaper: the next lease to run out.
CREATE INDEX leases_not_after ON leases (not_after) WHERE reapable = 1;

-- Every lease there ever was.
CREATE TABLE lease_history (
    id        INTEGER PRIMARY KEY,
    node_id   TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    arrival   INTEGER NOT NULL,             -- of the run, for lists
    principal TEXT NOT NULL,
    work      TEXT,
    "from"    INTEGER NOT NULL,
    "to"      INTEGER,
    why       TEXT                          -- why it ended
) STRICT;
-- The last holders of a node.
CREATE INDEX lease_history_node ON lease_history (node_id, id);
-- Closing the row when the lease ends.
CREATE INDEX lease_history_run ON lease_history (run_id, node_id);
-- The runs that held a node, in the order of lists.
CREATE INDEX lease_history_arrival ON lease_history (node_id, arrival);

-- What happened, in the transaction in which it happened.
CREATE TABLE events (
    id      INTEGER PRIMARY KEY,            -- given by the writer; never used twice
    at      INTEGER NOT NULL,
    event   TEXT NOT NULL,                  -- run.queued, step.claimed, node.silent, ...
    run_id  TEXT,
    seq     INTEGER,
    node_id TEXT,
    data    TEXT NOT NULL                   -- what else is to be said, as a JSON object
) STRICT;
-- The story of one run.
CREATE INDEX events_run ON events (run_id, id) WHERE run_id IS NOT NULL;

-- The files that steps asked to keep. The name is data: the file is stored under a number.
CREATE TABLE artifacts (
    id        INTEGER PRIMARY KEY AUTOINCREMENT, -- also the name of the file, until the record is sealed
    run_id    TEXT NOT NULL REFERENCES runs (run_id),
    seq       INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    path      TEXT NOT NULL,                -- relative, as the contract names it
    size      INTEGER NOT NULL,
    sha256    TEXT NOT NULL,
    UNIQUE (run_id, path, seq, attempt)
) STRICT;

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

-- One row: what numbers are never given again, whatever was pruned. (The writer gives them: AUTOINCREMENT would read and
-- write a table of its own with each row.)
CREATE TABLE pruned (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    last_event   INTEGER NOT NULL,          -- up to here events may have gaps: whoever resumes from before has to look anew
    last_arrival INTEGER NOT NULL           -- the largest of a run that was pruned
) STRICT;
INSERT INTO pruned (one, last_event, last_arrival) VALUES (1, 0, 0);

-- Idempotency keys with what their first use did, in the same transaction (I5). The primary key is the last guard
-- against two effects. Nothing here says "in progress": a key is here, or its request did nothing.
CREATE TABLE requests (
    scope       TEXT NOT NULL,              -- the principal: a rotated token is the same caller
    key         TEXT NOT NULL COLLATE BINARY,
    run_id      TEXT,                       -- what it was about
    created_at  INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,           -- when the answer is forgotten; of a tombstone, when the key is free again
    fp_version  INTEGER,                    -- how the fingerprint was made
    fingerprint BLOB,                       -- of method, path, query and body
    status      INTEGER,
    headers     TEXT,                       -- {"name": "value"}: those that matter
    body        BLOB,
    PRIMARY KEY (scope, key),
    -- A tombstone has lost its answer: it refuses a late retry instead of doing it again.
    CONSTRAINT whole_or_tombstone CHECK (
        (status IS NULL) = (body IS NULL) AND (status IS NULL) = (headers IS NULL) AND (status IS NULL) = (fingerprint IS NULL)
    )
) STRICT, WITHOUT ROWID;
-- The reaper: what is to be forgotten next.
CREATE INDEX requests_due ON requests (due_at);
-- The end of a run lets go of the keys that waited for it.
CREATE INDEX requests_run ON requests (run_id) WHERE run_id IS NOT NULL;

-- What is to be sent to receivers outside, written in the transaction of its event and sent after the commit. One row
-- an event and receiver; the id is the same however often it is sent, so that the receiver can drop repeats.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id   TEXT NOT NULL UNIQUE,      -- the header webhook-id
    webhook      TEXT NOT NULL,             -- the name of the receiver in the configuration
    event        TEXT NOT NULL,
    run_id       TEXT,
    payload      TEXT NOT NULL,             -- the body, as it is sent every time
    state        TEXT NOT NULL DEFAULT 'pending' CHECK (state = 'pending' OR state = 'delivered' OR state = 'failed'),
    attempts     INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    next_at      INTEGER NOT NULL,          -- when to send it (again)
    ended_at     INTEGER,                   -- when it was delivered, or given up
    last_error   TEXT,                      -- why the last attempt failed
    CONSTRAINT ended_iff_not_pending CHECK ((ended_at IS NULL) = (state = 'pending'))
) STRICT;
-- The sender: what is due next for each receiver.
CREATE INDEX outbox_pending ON outbox (webhook, next_at) WHERE state = 'pending';
-- Lists by state.
CREATE INDEX outbox_state ON outbox (state, id);
