//! A long history: what happens now must cost the same after a million runs as after a thousand.

use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;

use super::Bench;
use super::client::{Conn, Peer};
use super::fill;
use super::lab;
use super::server::{How, Server};
use super::sweep::{LASTING, queue};
use super::table::{Pairs, Table, Target, median, millis, ms};

const MANY: usize = 1_000_000;
const FEW: usize = 1_000;

pub fn measure(bench: &Bench, table: &mut Table) {
    let calls = (200.0 * bench.effort.scale) as usize;
    let (many, few) = (ended(bench, MANY), ended(bench, FEW));
    let mut pairs: Vec<Pairs> = (0..3).map(|_| Pairs::default()).collect();
    {
        let (own, other) = (Server::daemon_in(many.path(), LASTING), Server::daemon_in(few.path(), LASTING));
        for _ in 0..bench.effort.rounds {
            let own = bench.rt.block_on(everyday(&own.peer, calls));
            let other = bench.rt.block_on(everyday(&other.peer, calls));
            for (pairs, (own, other)) in pairs.iter_mut().zip(own.into_iter().zip(other)) {
                pairs.push(own, other);
            }
        }
    }
    for (name, pairs) in ["submit", "claim + result", "lists"].into_iter().zip(&pairs) {
        let name = format!("{name} with 1,000,000 ended runs (compared: with 1,000)");
        table.ratio(&name, ms(pairs.own()), ms(pairs.other()), pairs.ratio(), Target::AtMost(1.1));
    }
    drop(few);

    // 100,000 more that wait, in 50,000 shapes.
    queue(bench, many.path(), 50_000, 2);
    let (mut full, mut empty) = (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        full.push(millis(Server::daemon_in(many.path(), LASTING).startup));
        empty.push(millis(Server::daemon(How::default()).startup));
    }
    let more = median(full) - median(empty);
    let name = "start-up, 1,000,000 ended and 100,000 waiting: more than in an empty folder";
    table.figure(name, more / 1000.0, "s", 1.0);
}

/// Makes a folder in which so many runs have ended.
fn ended(bench: &Bench, count: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let template = one_ended(bench, folder.path());
    fill::copy(folder.path(), &[template], count, "e-");
    folder
}

/// Carries one run to its end in the daemon of this folder; returns its id once its record is sealed.
fn one_ended(bench: &Bench, folder: &Path) -> String {
    let daemon = Server::daemon_in(folder, LASTING);
    bench.rt.block_on(async {
        let mut conn = Conn::open(&daemon.peer).await;
        lab::board(&mut conn, "worker").await;
        let run = lab::submit(&mut conn, lab::on_node("worker", 1), 201).await;
        let step = lab::claim(&mut conn, "worker", 0).await.expect("a step");
        lab::report(&mut conn, "worker", &step, false).await;
        conn.get(&format!("/v1/runs/{run}/record")).await.expect(200);
        run
    })
}

/// The median times of a submission, of a step from claim to result, and of a page of the lists.
async fn everyday(peer: &Peer, calls: usize) -> [f64; 3] {
    let mut conn = Conn::open(peer).await;
    lab::board(&mut conn, "worker").await;
    lab::submit(&mut conn, lab::on_node("worker", 200), 201).await;
    let waiting = lab::on_node("worker", 1);
    let (mut submits, mut claims, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..calls.min(199) {
        let began = Instant::now();
        lab::submit(&mut conn, waiting.clone(), 202).await;
        submits.push(millis(began.elapsed()));
        let began = Instant::now();
        let step = lab::claim(&mut conn, "worker", 0).await.expect("a step");
        lab::report(&mut conn, "worker", &step, false).await;
        claims.push(millis(began.elapsed()));
    }
    // Ended runs are on every page: who waits is got rid of first.
    for run in conn.get("/v1/runs?state=QUEUED&limit=500").await.json()["runs"].as_array().expect("runs") {
        lab::cancel(&mut conn, run["run_id"].as_str().expect("an id")).await;
    }
    for run in conn.get("/v1/runs?state=RUNNING").await.json()["runs"].as_array().expect("runs") {
        lab::cancel(&mut conn, run["run_id"].as_str().expect("an id")).await;
    }
    for query in ["", "?state=SUCCEEDED", "?principal=operator", "?node=worker", "?principal=operator&state=FAILED"] {
        for _ in 0..calls / 10 {
            let began = Instant::now();
            conn.get(&format!("/v1/runs{query}")).await.expect(200);
            lists.push(millis(began.elapsed()));
        }
    }
    [median(submits), median(claims), lists.iter().sum::<f64>() / lists.len() as f64]
}
