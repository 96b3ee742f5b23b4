//! A thousand runs that begin in one sweep: one run holds a thousand nodes and is cancelled. What the cancel costs by
//! itself is measured without anybody waiting, and taken off.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;

use super::Bench;
use super::bare::Bare;
use super::client::{Conn, Peer, send_all};
use super::lab;
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, per_second};

const RUNS: usize = 1000;

/// What a promotion writes: the run, its step, the count of those that wait, a lease, its history, three events.
const ROWS: usize = 8;

/// The longest page of a list.
const PAGE: usize = 500;

const WIDE: How =
    How { slow: None, settings: &[("MEDIATOR_ADVERT_TTL_SECONDS", "86400"), ("MEDIATOR_LEASE_MAX_PER_RUN", "1024")] };

pub fn measure(bench: &Bench, table: &mut Table) {
    let (daemon, bare) = (Server::daemon(WIDE), Bare::new());
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        for node in 0..RUNS {
            lab::board(&mut conn, &format!("b{node}")).await;
        }
    });
    let mut pairs = Pairs::default();
    for _ in 0..bench.effort.rounds {
        let alone = bench.rt.block_on(cancel_wide(&daemon.peer, 0));
        let all = bench.rt.block_on(cancel_wide(&daemon.peer, RUNS));
        let rate = |time: Duration| RUNS as f64 / time.as_secs_f64();
        pairs.push(rate(all.saturating_sub(alone)), rate(bare.grouped(RUNS, ROWS)));
    }
    let name = "promotions/s in one sweep of 1,000 that fit";
    let bare = format!("{} times 8 bare rows", per_second(pairs.other()));
    table.ratio(name, per_second(pairs.own()), bare, pairs.ratio(), Target::AtLeast(0.3));
}

/// The time of a cancel that frees all nodes, with so many runs waiting for one each.
async fn cancel_wide(peer: &Peer, waiting: usize) -> Duration {
    let mut conn = Conn::open(peer).await;
    let roles: Vec<_> = (0..32)
        .map(|at| json!({"as": format!("r{at}"), "capability": "board", "count": if at < 31 { 32 } else { 8 }}))
        .collect();
    let wide = json!({"requires": roles, "steps": [{"id": "h", "hold": {}}]}).to_string();
    let wide = lab::submit(&mut conn, Bytes::from(wide), 201).await;
    send_all(peer, "/v1/runs", vec![lab::one_step(); waiting], 202).await;
    let began = Instant::now();
    lab::cancel(&mut conn, &wide).await;
    let took = began.elapsed();
    // For the next round everybody goes again.
    let mut promoted = 0;
    for _ in 0..waiting.div_ceil(PAGE) {
        let page = conn.get(&format!("/v1/runs?state=RUNNING&limit={PAGE}")).await.expect(200).json();
        for run in page["runs"].as_array().expect("runs") {
            lab::cancel(&mut conn, run["run_id"].as_str().expect("an id")).await;
            promoted += 1;
        }
    }
    assert_eq!(promoted, waiting, "every run was promoted");
    took
}
