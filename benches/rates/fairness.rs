//! Whether each of many clients gets its share, and none waits for long.

use std::time::Duration;

use super::Bench;
use super::client::{Conn, Shot, load};
use super::lab;
use super::server::{How, Server};
use super::table::{Table, Target, millis, ms};

pub fn measure(bench: &Bench, table: &mut Table) {
    let shot = Shot { path: "/v1/runs", body: lab::one_step(), status: 202, with_key: false };
    let time = Duration::from_secs_f64(10.0 * bench.effort.scale);
    for clients in [16, 64] {
        let daemon = Server::daemon(How::default());
        let load = bench.rt.block_on(async {
            let mut conn = Conn::open(&daemon.peer).await;
            lab::board(&mut conn, "b1").await;
            lab::drain(&mut conn, "b1").await;
            load(&daemon.peer, clients, time, &shot).await
        });
        let (least, most) = (load.counts.iter().min().expect("clients"), load.counts.iter().max().expect("clients"));
        let share = *least as f64 / *most as f64;
        let name = format!("{clients} clients for {:.0} s: the slowest's share", time.as_secs_f64());
        table.ratio(&name, format!("{least} calls"), format!("{most} calls"), share, Target::AtLeast(0.5));
        let (longest, median) = (millis(*load.latencies.last().expect("calls")), millis(load.median()));
        let name = format!("{clients} clients: the longest wait");
        table.ratio(&name, ms(longest), format!("median {}", ms(median)), longest / median, Target::AtMost(50.0));
    }
}
