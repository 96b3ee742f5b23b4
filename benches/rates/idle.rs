//! What waiting costs: memory, and the processor while nothing happens.

use std::time::Duration;

use hyper::Method;

use super::Bench;
use super::client::{Conn, Peer};
use super::lab;
use super::server::{How, Server};
use super::sweep::LASTING;
use super::table::{Table, millis};

pub fn measure(bench: &Bench, table: &mut Table) {
    let settle = Duration::from_secs(2);
    let daemon = Server::daemon(How::default());
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        lab::board(&mut conn, "b1").await;
        lab::drain(&mut conn, "b1").await;
        tokio::time::sleep(settle).await;
    });
    table.figure("resident memory, idle", daemon.resident(), "MiB", 20.0);

    let polls = bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        let run = lab::submit(&mut conn, lab::one_step(), 202).await;
        let polls = park(&daemon.peer, 1000, &format!("/v1/runs/{run}?while=QUEUED&wait_seconds=60")).await;
        tokio::time::sleep(settle).await;
        polls
    });
    table.figure("resident memory, 1,000 long polls", daemon.resident(), "MiB", 50.0);
    polls.iter().for_each(tokio::task::JoinHandle::abort);
    bench.rt.block_on(tokio::task::yield_now());
    drop(daemon);

    // In 50,000 shapes, and after a sweep has looked at them.
    let daemon = Server::daemon_in(bench.many_shapes(), LASTING);
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        for _ in 0..20 {
            let free = serde_json::json!([{"as": "dut", "capability": "board", "attrs": {"kind": "free"}}]);
            let run = lab::submit(&mut conn, lab::contract(free, 1), 201).await;
            lab::cancel(&mut conn, &run).await;
        }
        tokio::time::sleep(settle).await;
    });
    table.figure("resident memory, 100,000 waiting", daemon.resident(), "MiB", 64.0);
    drop(daemon);

    let time = Duration::from_secs_f64((20.0 * bench.effort.scale).max(5.0));
    let daemon = Server::daemon(LASTING);
    let (used, beaten) = bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        let nodes: Vec<String> = (0..1000).map(|at| format!("n{at}")).collect();
        let mut claims = Vec::new();
        for node in &nodes {
            lab::board(&mut conn, node).await;
            claims.push(park_claim(&daemon.peer, node.clone()).await);
        }
        lab::drain(&mut conn, "n0").await;
        let run = lab::submit(&mut conn, lab::on_node("n0", 1), 202).await;
        let polls = park(&daemon.peer, 100, &format!("/v1/runs/{run}?while=QUEUED&wait_seconds=60")).await;
        let streams = park(&daemon.peer, 100, "/v1/events").await;
        tokio::time::sleep(settle).await;
        let before = daemon.cpu();
        tokio::time::sleep(time).await;
        let used = daemon.cpu() - before;
        // For comparison: a second's share of the heartbeats of all nodes, every 20 s each.
        let before = daemon.cpu();
        for node in nodes.iter().take(50) {
            lab::board(&mut conn, node).await;
        }
        let beaten = daemon.cpu() - before;
        // Before the daemon: none of them is answered any more.
        claims.iter().chain(&polls).chain(&streams).for_each(tokio::task::JoinHandle::abort);
        (used, beaten)
    });
    let share = 100.0 * used.as_secs_f64() / time.as_secs_f64();
    let name = "processor, 1,000 nodes and 200 followers connected, nothing happening";
    table.figure(name, share, "% of a core", 0.5);
    table.figure("their heartbeats, for comparison", millis(beaten) / 10.0, "% of a core", 100.0);
}

/// Opens connections that wait for an answer each. They end with what is returned.
async fn park(peer: &Peer, count: usize, path: &str) -> Vec<tokio::task::JoinHandle<()>> {
    let mut parked = Vec::new();
    for _ in 0..count {
        let (mut conn, path) = (Conn::open(peer).await, path.to_owned());
        parked.push(tokio::spawn(async move {
            conn.call(Method::GET, &path, bytes::Bytes::new(), None).await;
        }));
    }
    parked
}

async fn park_claim(peer: &Peer, node: String) -> tokio::task::JoinHandle<()> {
    let mut conn = Conn::open(peer).await;
    tokio::spawn(async move {
        lab::claim(&mut conn, &node, 60).await;
    })
}
