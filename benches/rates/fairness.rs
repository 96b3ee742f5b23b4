//! Whether each of many clients gets its share, and none waits for long.
//!
//! A single sync of a shared disk may take a hundred times the usual, so the waits of the ceiling, which does little else
//! than to sync, are printed beside those of the daemon.

use std::time::Duration;

use super::Bench;
use super::client::{Conn, Load, Shot, load};
use super::lab;
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, millis, ms};

pub fn measure(bench: &Bench, table: &mut Table) {
    let daemon = Shot { path: "/v1/runs", body: lab::one_step(), status: 202, with_key: false };
    let time = Duration::from_secs_f64(10.0 * bench.effort.scale);
    let (mut few, mut many) = (Rounds::default(), Rounds::default());
    let mut bare = Pairs::default();
    for _ in 0..bench.effort.rounds {
        for (clients, rounds) in [(16, &mut few), (64, &mut many)] {
            let own = Server::daemon(How::default());
            let load = bench.rt.block_on(async {
                let mut conn = Conn::open(&own.peer).await;
                lab::board(&mut conn, "b1").await;
                lab::drain(&mut conn, "b1").await;
                load(&own.peer, clients, time, &daemon).await
            });
            rounds.push(&load);
        }
        let other = Server::ceiling(How::default());
        push_wait(&mut bare, &bench.rt.block_on(load(&other.peer, 16, time, &Shot::bare())));
    }
    for (clients, rounds) in [(16, few), (64, many)] {
        let name = format!("{clients} clients for {:.0} s: the slowest's share", time.as_secs_f64());
        let calls = |count: f64| format!("{count:.0} calls");
        let Rounds { shares, waits } = rounds;
        table.ratio(&name, calls(shares.own()), calls(shares.other()), shares.ratio(), Target::AtLeast(0.5));
        add_wait(table, &format!("{clients} clients: the longest wait"), &waits, Target::AtMost(50.0));
    }
    add_wait(table, "16 clients of the ceiling: the longest wait", &bare, Target::None);
}

/// What the rounds of one number of clients showed.
#[derive(Default)]
struct Rounds {
    /// Calls of the slowest client, and of the fastest.
    shares: Pairs,
    /// The longest wait and the median one, in milliseconds.
    waits: Pairs,
}

impl Rounds {
    fn push(&mut self, load: &Load) {
        let (least, most) = (load.counts.iter().min().expect("clients"), load.counts.iter().max().expect("clients"));
        self.shares.push(*least as f64, *most as f64);
        push_wait(&mut self.waits, load);
    }
}

fn push_wait(waits: &mut Pairs, load: &Load) {
    let (longest, median) = (millis(*load.latencies.last().expect("calls")), millis(load.median()));
    eprintln!("  the longest wait: {}, median {}", ms(longest), ms(median));
    waits.push(longest, median);
}

fn add_wait(table: &mut Table, name: &str, waits: &Pairs, target: Target) {
    table.ratio(name, ms(waits.own()), format!("median {}", ms(waits.other())), waits.ratio(), target);
}
