//! One release with a long queue: what it costs when nothing fits, and when only the very last run does.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use serde_json::json;

use super::Bench;
use super::client::{Conn, Peer, send_all};
use super::fill;
use super::lab;
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, median, millis, ms};

/// Nodes are declared once and are not to fall silent meanwhile.
pub const LASTING: How = How { slow: None, settings: &[("MEDIATOR_ADVERT_TTL_SECONDS", "86400")] };

/// So many kinds of boards, and of hosts: a waiting run wants one of each.
const KINDS: usize = 224;

pub fn measure(bench: &Bench, table: &mut Table) {
    let releases = (100.0 * bench.effort.scale) as usize;
    let mut pairs = Pairs::default();
    let (many, few) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    queue(bench, many.path(), 50, 2000);
    queue(bench, few.path(), 10, 1);
    let (own, other) = (Server::daemon_in(many.path(), LASTING), Server::daemon_in(few.path(), LASTING));
    for _ in 0..bench.effort.rounds {
        let own = bench.rt.block_on(release(&own.peer, releases, false));
        pairs.push(own, bench.rt.block_on(release(&other.peer, releases, false)));
    }
    drop((own, other, many));
    let name = "one release, 100,000 waiting in 50 shapes, none fits";
    table.ratio(name, ms(pairs.own()), ms(pairs.other()), pairs.ratio(), Target::AtMost(1.3));

    let mut pairs = Pairs::default();
    let many = bench.many_shapes();
    let (own, other) = (Server::daemon_in(many, LASTING), Server::daemon_in(few.path(), LASTING));
    for _ in 0..bench.effort.rounds {
        let own = bench.rt.block_on(release(&own.peer, releases, true));
        pairs.push(own, bench.rt.block_on(release(&other.peer, releases, true)));
    }
    let name = "one release, 100,000 waiting in 50,000 shapes, the last one fits";
    table.ratio(name, ms(pairs.own()), ms(pairs.other()), pairs.ratio(), Target::AtMost(20.0));
    table.figure("the same", pairs.own(), "ms", 50.0);
}

/// Fills a folder: `shapes` times `each` runs wait for nodes that are draining, and one node is free.
pub fn queue(bench: &Bench, folder: &Path, shapes: usize, each: usize) {
    let mut daemon = Server::daemon_in(folder, LASTING);
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        for kind in 0..KINDS.min(shapes) {
            for capability in ["board", "host"] {
                let node = format!("{capability}-{kind}");
                let own = json!([{"capability": capability, "attrs": {"kind": kind}}]);
                lab::advertise(&mut conn, &node, own).await;
                lab::drain(&mut conn, &node).await;
            }
        }
        lab::advertise(&mut conn, "free", json!([{"capability": "board", "attrs": {"kind": "free"}}])).await;
        send_all(&daemon.peer, "/v1/runs", (0..shapes).map(shape).collect(), 202).await;
    });
    daemon.kill();
    if each > 1 {
        fill::copy(folder, &fill::ids(folder, "QUEUED"), each - 1, "q-");
    }
}

/// The contract of the shape with this number.
fn shape(number: usize) -> Bytes {
    let role = |capability, kind| json!({"as": capability, "capability": capability, "attrs": {"kind": kind}});
    lab::contract(json!([role("board", number / KINDS), role("host", number % KINDS)]), 1)
}

/// The median time of a cancel that gives the free node back; with `fits` the last run in the queue waits for it.
async fn release(peer: &Peer, times: usize, fits: bool) -> f64 {
    let mut conn = Conn::open(peer).await;
    let contract = lab::contract(json!([{"as": "dut", "capability": "board", "attrs": {"kind": "free"}}]), 1);
    let mut holder = lab::submit(&mut conn, contract.clone(), 201).await;
    let mut measured = Vec::new();
    for _ in 0..times {
        let next = if fits { Some(lab::submit(&mut conn, contract.clone(), 202).await) } else { None };
        let began = Instant::now();
        lab::cancel(&mut conn, &holder).await;
        measured.push(millis(began.elapsed()));
        holder = match next {
            Some(next) => next,
            None => lab::submit(&mut conn, contract.clone(), 201).await,
        };
    }
    lab::cancel(&mut conn, &holder).await;
    median(measured)
}
