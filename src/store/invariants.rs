//! Those of I1..I11 that a query can see: each returns the rows that break it. Debug builds check the cheap ones
//! before every commit; tests and people check all of them.

use rusqlite::Connection;

use super::Error;

/// A row that should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The invariant, e.g. `I2`.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

struct Check {
    invariant: &'static str,
    /// Whether its cost follows from what runs, not from what waits or has ended.
    #[cfg_attr(not(debug_assertions), allow(dead_code, reason = "only debug builds check before every commit"))]
    is_cheap: bool,
    query: &'static str,
}

const CHECKS: &[Check] = &[
    // I1 is the primary key of `leases`.
    Check {
        invariant: "I2",
        is_cheap: true,
        query: "SELECT 'node ' || node_id || ' is leased to run ' || leases.run_id || ', which is ' || coalesce(state, 'missing')
                FROM leases LEFT JOIN runs USING (run_id) WHERE state IS NOT 'RUNNING'",
    },
    Check {
        invariant: "I3",
        is_cheap: true,
        // A node of a running run is leased to it, or was given back by a step of it.
        query: "SELECT DISTINCT 'run ' || run_id || ' is RUNNING without node ' || (node.value ->> 'node_id')
                FROM runs, json_each(runs.assigned) AS role, json_each(role.value, '$.nodes') AS node
                WHERE state = 'RUNNING'
                  AND NOT EXISTS (SELECT 1 FROM leases
                      WHERE leases.run_id = runs.run_id AND leases.node_id = node.value ->> 'node_id')
                  AND NOT EXISTS (SELECT 1 FROM lease_history AS past WHERE past.run_id = runs.run_id
                      AND past.node_id = node.value ->> 'node_id' AND past.why = 'released')",
    },
    Check {
        invariant: "I4",
        is_cheap: false,
        query: "SELECT 'run ' || run_id || ' is QUEUED and has assigned nodes' FROM runs
                WHERE state = 'QUEUED' AND assigned IS NOT NULL
                UNION ALL
                SELECT 'run ' || run_id || ' is QUEUED and its step ' || seq || ' is ' || steps.state
                    || coalesce(' on ' || node_id, '')
                FROM runs JOIN steps USING (run_id) WHERE runs.state = 'QUEUED'
                  AND (steps.state <> 'PENDING' OR node_id IS NOT NULL OR ready <> 0 OR attempt <> 1)
                UNION ALL
                SELECT 'run ' || run_id || ' is QUEUED and has no steps' FROM runs
                WHERE state = 'QUEUED' AND NOT EXISTS (SELECT 1 FROM steps WHERE steps.run_id = runs.run_id)
                UNION ALL
                SELECT 'run ' || run_id || ' is QUEUED and its step ' || seq || ' was begun' FROM runs
                JOIN attempts USING (run_id) WHERE runs.state = 'QUEUED'",
    },
    Check {
        invariant: "I8",
        is_cheap: true,
        query: "SELECT 'step ' || steps.seq || ' of run ' || steps.run_id || ' is CLAIMED under a nonce that is not its lease''s'
                FROM steps JOIN attempts USING (run_id, seq, attempt)
                LEFT JOIN leases ON leases.node_id = steps.node_id AND leases.run_id = steps.run_id
                WHERE steps.state = 'CLAIMED' AND steps.kind = 'run' AND leases.nonce IS NOT attempts.nonce",
    },
    Check {
        invariant: "I11",
        is_cheap: true,
        query: "SELECT 'node ' || node_id || ' has ' || count(*) || ' steps in hand' FROM steps
                WHERE state = 'CLAIMED' AND kind = 'run' GROUP BY node_id HAVING count(*) > 1
                UNION ALL
                SELECT 'step ' || seq || ' of run ' || run_id || ' is in the hands of a life of node ' || node_id
                    || ' that is not its current one'
                FROM steps JOIN nodes USING (node_id)
                WHERE state = 'CLAIMED' AND kind = 'run' AND steps.instance IS NOT nodes.instance",
    },
    Check {
        invariant: "steps",
        is_cheap: false,
        query: "SELECT 'run ' || run_id || ' is ' || runs.state || ' and its step ' || seq || ' is ' || steps.state
                FROM runs JOIN steps USING (run_id)
                WHERE runs.ended_at IS NOT NULL AND steps.state IN ('PENDING', 'CLAIMED', 'ASKED')",
    },
    Check {
        invariant: "cleaning",
        is_cheap: true,
        query: "SELECT 'node ' || node_id || ' is leased to run ' || leases.run_id || ' and not clean after run '
                    || cleanings.run_id
                FROM cleanings JOIN leases USING (node_id)",
    },
    Check {
        invariant: "history",
        is_cheap: true,
        query: "SELECT 'the lease of run ' || run_id || ' on node ' || node_id || ' has no open history row' FROM leases
                WHERE (SELECT count(*) FROM lease_history AS past WHERE past.run_id = leases.run_id
                    AND past.node_id = leases.node_id AND past.\"to\" IS NULL) <> 1",
    },
];

/// Runs every check.
///
/// # Errors
/// Only the database's.
pub fn check(conn: &Connection) -> Result<Vec<Broken>, Error> {
    run(conn, |_| true)
}

fn run(conn: &Connection, wanted: impl Fn(&Check) -> bool) -> Result<Vec<Broken>, Error> {
    let mut broken = Vec::new();
    for check in CHECKS.iter().filter(|check| wanted(check)) {
        let mut statement = conn.prepare_cached(check.query)?;
        for what in statement.query_map([], |row| row.get(0))? {
            broken.push(Broken { invariant: check.invariant, what: what? });
        }
    }
    Ok(broken)
}

/// Stops a debug build that is about to commit rows which break an invariant. What came from outside is not its
/// fault: `MEDIATOR_TOLERATE_BROKEN_ROWS` lets tests plant such rows.
#[cfg(debug_assertions)]
pub(super) fn assert_held(conn: &Connection) {
    if conn.is_autocommit() || std::env::var_os("MEDIATOR_TOLERATE_BROKEN_ROWS").is_some() {
        return;
    }
    match super::statements::unseen(|| run(conn, |check| check.is_cheap)) {
        Ok(broken) => assert!(broken.is_empty(), "about to commit {broken:?}"),
        // The commit will meet the same error and handle it.
        Err(error) => log::debug!("cannot check the invariants cause={error}"),
    }
}
