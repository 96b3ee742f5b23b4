//! Durable submissions: each is answered when its commit is on the disk. The only board is draining, so every run is
//! queued: the ordinary case of a lab that is busy.

use std::time::Duration;

use super::Bench;
use super::client::{Conn, Load, Shot, load};
use super::lab;
use super::server::{How, Server};
use super::table::{Pairs, Table, Target, millis, ms, per_second};

const NORMAL: &[(&str, &str)] = &[("MEDIATOR_STORAGE_SYNCHRONOUS", "normal"), ("CEILING_SYNCHRONOUS", "normal")];

struct Case {
    name: &'static str,
    clients: usize,
    seconds: f64,
    slow: bool,
    normal: bool,
    with_key: bool,
    target: Target,
}

const CASES: &[Case] = &[
    case("durable submit, 1 client", 1, Target::AtMost(1.6)),
    case("durable submits/s, 16 clients", 16, Target::AtLeast(0.6)),
    case("durable submits/s, 64 clients", 64, Target::AtLeast(0.4)),
    Case { slow: true, ..case("the same, 16 clients, slow flush", 16, Target::AtLeast(0.9)) },
    Case { slow: true, ..case("the same, 1 client, slow flush", 1, Target::None) },
    Case { with_key: true, ..case("16 clients, each call with an idempotency key", 16, Target::None) },
    Case { normal: true, ..case("16 clients, synchronous=NORMAL on both sides", 16, Target::None) },
];

const fn case(name: &'static str, clients: usize, target: Target) -> Case {
    Case { name, clients, seconds: 1.5, slow: false, normal: false, with_key: false, target }
}

pub fn measure(bench: &Bench, table: &mut Table) {
    for case in CASES {
        let how = How { slow: case.slow.then_some(&bench.slow), settings: if case.normal { NORMAL } else { &[] } };
        let daemon = Shot { path: "/v1/runs", body: lab::one_step(), status: 202, with_key: case.with_key };
        let time = Duration::from_secs_f64(case.seconds * bench.effort.scale);
        let (mut rates, mut times) = (Pairs::default(), Pairs::default());
        for _ in 0..bench.effort.rounds {
            // A fresh folder each: no round has to carry what the one before has left.
            let (own, other) = (Server::daemon(how), Server::ceiling(how));
            let (own, other) = bench.rt.block_on(async {
                let mut conn = Conn::open(&own.peer).await;
                lab::board(&mut conn, "b1").await;
                lab::drain(&mut conn, "b1").await;
                let before = own.cpu();
                let own_load = load(&own.peer, case.clients, time, &daemon).await;
                let own_cpu = own.cpu() - before;
                let before = other.cpu();
                let other_load = load(&other.peer, case.clients, time, &Shot::bare()).await;
                let each = |cpu: Duration, load: &Load| cpu.as_micros() as f64 / (load.latencies.len() as f64 * 1.15);
                let (daemon, ceiling) = (each(own_cpu, &own_load), each(other.cpu() - before, &other_load));
                eprintln!("  processor time a call, about: {daemon:.0} us, ceiling {ceiling:.0} us");
                (own_load, other_load)
            });
            rates.push(own.per_second, other.per_second);
            times.push(millis(own.median()), millis(other.median()));
        }
        if case.clients == 1 {
            table.ratio(case.name, ms(times.own()), ms(times.other()), times.ratio(), case.target);
        } else {
            table.ratio(case.name, per_second(rates.own()), per_second(rates.other()), rates.ratio(), case.target);
        }
    }
}
