//! How long it takes from an event to the claim that was parked for it: no timer is on the way.

use std::time::{Duration, Instant};

use super::Bench;
use super::bare::Bare;
use super::client::{Conn, Peer};
use super::lab::{self, claim, report};
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, median, millis, ms};

pub fn measure(bench: &Bench, table: &mut Table) {
    let cycles = (200.0 * bench.effort.scale) as usize;
    let bare = Bare::new();
    let daemon = Server::daemon(How::default());
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        lab::board(&mut conn, "x").await;
        lab::board(&mut conn, "y").await;
    });
    let (mut freed, mut submitted) = (Pairs::default(), Pairs::default());
    let mut ended = 0;
    // The records of what has ended are sealed a little later: that must slow neither what is compared nor the next.
    let mut settle = |runs: usize| {
        ended += runs;
        while daemon.sealed() < ended {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for _ in 0..bench.effort.rounds {
        let commits = || median((0..cycles).map(|_| millis(bare.two_commits())).collect());
        let own = bench.rt.block_on(cycle(&daemon.peer, cycles, result_to_claim));
        settle(2 * cycles);
        freed.push(own, commits());
        let own = bench.rt.block_on(cycle(&daemon.peer, cycles, submission_to_claim));
        settle(cycles);
        submitted.push(own, commits());
    }
    let mut add = |name, pairs: &Pairs| {
        table.ratio(name, ms(pairs.own()), ms(pairs.other()), pairs.ratio(), Target::AtMost(4.0));
    };
    add("from a result that frees a node to the promoted run's parked claim answered", &freed);
    add("from a submission to a parked claim answered", &submitted);
}

/// The median of many cycles, each with connections that are open already.
async fn cycle(peer: &Peer, cycles: usize, one: impl AsyncFn(&mut Conn, &mut Conn, &mut Conn) -> Duration) -> f64 {
    let (mut x, mut y) = (Conn::open(peer).await, Conn::open(peer).await);
    let mut other = Conn::open(peer).await;
    let mut times = Vec::new();
    for _ in 0..cycles {
        times.push(millis(one(&mut x, &mut y, &mut other).await));
    }
    median(times)
}

/// A run holds x and y and works on x; another waits for y. The result on x ends the first: y's claim is answered.
async fn result_to_claim(x: &mut Conn, y: &mut Conn, other: &mut Conn) -> Duration {
    let both = serde_json::json!([
        {"as": "dut", "capability": "board", "attrs": {"node": "x"}},
        {"as": "peer", "capability": "board", "attrs": {"node": "y"}},
    ]);
    lab::submit(other, lab::contract(both, 1), 201).await;
    lab::submit(other, lab::on_node("y", 1), 202).await;
    let step = claim(x, "x", 0).await.expect("a step");
    let parked = claim(y, "y", 30);
    let result = async {
        // Until the claim is parked.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let began = Instant::now();
        report(x, "x", &step, false).await;
        began
    };
    let (step, answered, began) = together(parked, result).await;
    report(y, "y", &step, false).await;
    answered - began
}

/// A claim is parked on y, which is free; a run for it is submitted.
async fn submission_to_claim(_: &mut Conn, y: &mut Conn, other: &mut Conn) -> Duration {
    let parked = claim(y, "y", 30);
    let submission = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let began = Instant::now();
        lab::submit(other, lab::on_node("y", 1), 201).await;
        began
    };
    let (step, answered, began) = together(parked, submission).await;
    report(y, "y", &step, false).await;
    answered - began
}

/// Waits for both: returns what was claimed and when, and when the other call was sent.
async fn together(
    parked: impl Future<Output = Option<lab::Claimed>>,
    event: impl Future<Output = Instant>,
) -> (lab::Claimed, Instant, Instant) {
    let parked = async {
        let step = parked.await.expect("a step");
        (step, Instant::now())
    };
    let ((step, answered), began) = tokio::join!(parked, event);
    (step, answered, began)
}
