//! Nodes at work: claim a step, report it, claim the next. Runs of 20 steps, so that one result in twenty ends a run
//! and has the queue swept before it is answered.

use std::time::{Duration, Instant};

use super::Bench;
use super::client::{Conn, Peer, Shot, load, send_all};
use super::lab::{self, claim, report};
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, per_second};

pub fn measure(bench: &Bench, table: &mut Table) {
    let time = Duration::from_secs_f64(1.5 * bench.effort.scale);
    let cases = [
        ("claim + result, 1 node, two calls", 1, false, Target::AtLeast(0.7)),
        ("claim + result, 4 nodes, two calls", 4, false, Target::AtLeast(0.7)),
        ("result with the next claim in one call, 4 nodes", 4, true, Target::AtLeast(1.1)),
        ("the same, 1 node", 1, true, Target::None),
    ];
    for (name, nodes, one_call, target) in cases {
        let mut pairs = Pairs::default();
        for _ in 0..bench.effort.rounds {
            let (own, other) = (Server::daemon(How::default()), Server::ceiling(How::default()));
            let (steps, calls) = bench.rt.block_on(async {
                let before = own.cpu();
                let steps = work(&own.peer, nodes, time, one_call).await;
                let each = (own.cpu() - before).as_micros() as f64 / (steps * time.as_secs_f64() * 1.15);
                eprintln!("  processor time a step, what it is queued with included, about: {each:.0} us");
                (steps, load(&other.peer, nodes, time, &Shot::bare()).await.per_second)
            });
            pairs.push(steps, calls / 2.0);
        }
        table.ratio(
            name,
            format!("{} steps", per_second(pairs.own())),
            per_second(pairs.other()),
            pairs.ratio(),
            target,
        );
    }
}

/// Returns how many steps a second `nodes` nodes get through.
async fn work(peer: &Peer, nodes: usize, time: Duration, one_call: bool) -> f64 {
    let mut conn = Conn::open(peer).await;
    for node in 0..nodes {
        lab::board(&mut conn, &format!("b{node}")).await;
    }
    // Placed on whichever node is free, and more than enough of them waiting behind.
    let contract = lab::contract(serde_json::json!([{"as": "dut", "capability": "board"}]), 20);
    for _ in 0..nodes {
        lab::submit(&mut conn, contract.clone(), 201).await;
    }
    send_all(peer, "/v1/runs", vec![contract; 1200], 202).await;
    let begin = Instant::now() + time.mul_f64(0.15);
    let mut agents = Vec::new();
    for node in 0..nodes {
        let (mut conn, node) = (Conn::open(peer).await, format!("b{node}"));
        agents.push(tokio::spawn(async move {
            let mut done = 0;
            let mut step = claim(&mut conn, &node, 0).await;
            loop {
                let own = step.take().expect("there is more work than time");
                step = report(&mut conn, &node, &own, one_call).await;
                if !one_call {
                    step = claim(&mut conn, &node, 0).await;
                }
                let now = Instant::now();
                if now >= begin + time {
                    return done;
                }
                done += usize::from(now >= begin);
            }
        }));
    }
    let mut done = 0;
    for agent in agents {
        done += agent.await.expect("no agent panics");
    }
    done as f64 / time.as_secs_f64()
}
