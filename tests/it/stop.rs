//! Stopping: what was begun is answered, and it ends, whoever still holds a connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use mediator::clock::boottime_ms;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Daemon, advert, on_board, one_step, wait_for};

/// What a stop may take on a machine that has nothing else to do, and what is allowed for one that has.
const PROMISED_MS: i64 = 5_000;
const BUSY_MS: i64 = 10_000;

fn open(daemon: &Daemon, head: &str, body: &[u8]) -> TcpStream {
    let address = daemon.url().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let token = daemon.token();
    let head = format!("{head} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n");
    // What follows a head ends it, with lines of its own.
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body).expect("it reads");
    stream
}

fn read_all(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends SIGTERM and waits for the end; returns how long it took.
fn stop(daemon: &mut Daemon) -> i64 {
    let began = boottime_ms();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().code(), Some(0));
    boottime_ms() - began
}

#[test]
fn an_idle_daemon_ends_at_once() {
    let mut daemon = Daemon::start();
    daemon.call("GET", "/readyz", &Value::Null).expect(200);
    let took = stop(&mut daemon);
    println!("an idle daemon: {took} ms");
    assert!(took < PROMISED_MS, "{took} ms");
}

/// Parked calls are answered: an agent, or somebody who follows a run, learns at once that it has to ask again.
#[test]
fn what_is_parked_is_answered() {
    let mut daemon = Daemon::start();
    daemon.call("POST", "/v1/nodes", &advert("b1", "b1-1", &["board"])).expect(200);
    let run = daemon.call("POST", "/v1/runs", &on_board(json!([{"id": "h", "hold": {}}]))).expect(201);
    let run = run["run_id"].as_str().expect("an id").to_owned();
    let body = br#"{"instance":"b1-1"}"#;
    let lines = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let claim = [lines.as_bytes(), body].concat();
    let claims: Vec<TcpStream> =
        (0..20).map(|_| open(&daemon, "POST /v1/nodes/b1/claim?wait_seconds=60", &claim)).collect();
    let follows: Vec<TcpStream> =
        (0..20).map(|_| open(&daemon, &format!("GET /v1/runs/{run}?while=RUNNING&wait_seconds=60"), b"\r\n")).collect();
    // They are there once a call that was sent behind them is answered.
    std::thread::sleep(Duration::from_millis(200));
    daemon.call("GET", "/readyz", &Value::Null).expect(200);
    let took = stop(&mut daemon);
    println!("40 parked calls: {took} ms");
    assert!(took < PROMISED_MS, "{took} ms");
    for stream in claims {
        let answer = read_all(stream);
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer:?}");
    }
    for stream in follows {
        let answer = read_all(stream);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("RUNNING"), "{answer:?}");
    }
}

/// Nobody can keep it: not who never reads, not who never sends the rest.
#[test]
fn it_ends_in_time_whoever_holds_a_connection() {
    let mut daemon = Daemon::start();
    daemon.call("POST", "/v1/nodes", &advert("b1", "b1-1", &["board"])).expect(200);
    daemon.call("POST", "/v1/runs", &one_step()).expect(201);
    let claim = daemon.call("POST", "/v1/nodes/b1/claim", &json!({"instance": "b1-1"})).expect(200);
    let step = format!("/v1/runs/{}/steps/1", claim["run_id"].as_str().expect("an id"));
    let holder = format!("nonce={}&attempt=1", claim["lease"]["nonce"].as_str().expect("a nonce"));
    // More than the sockets take on the way: whoever sends it is stuck on a reader that does not read.
    let long = Value::String("x".repeat(16 << 20));
    daemon.call("PUT", &format!("{step}/log?{holder}&offset=0"), &long).expect(204);
    let reason = "x".repeat(1000);
    for at in 0..100 {
        let drain = json!({"mode": "graceful", "reason": format!("{at} {reason}")});
        daemon.call("POST", "/v1/nodes/b1/drain", &drain).expect(200);
    }
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        held.push(open(&daemon, "GET /v1/events", b"last-event-id: 1\r\n\r\n"));
        held.push(open(&daemon, &format!("GET {step}/log"), b"\r\n"));
        held.push(open(&daemon, "GET /v1/no", b""));
        held.push(open(&daemon, "GET /healthz", b"\r\n"));
        held.push(open(&daemon, "POST /v1/runs", b"content-type: application/json\r\ncontent-length: 500\r\n\r\n{"));
    }
    for (at, path) in [
        ("log", format!("PUT {step}/log?{holder}&offset={}", (16 << 20) + 2)),
        ("file", format!("PUT {step}/artifacts/f?{holder}")),
    ] {
        let half = [b"content-length: 1000000\r\n\r\n".as_slice(), &vec![b'x'; 300_000]].concat();
        held.push(open(&daemon, &path, &half));
        println!("half a {at} is sent");
    }
    let last = on_board(json!([{"id": "h", "hold": {}}])).to_string();
    let lines = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", last.len());
    let (first_half, second_half) = last.as_bytes().split_at(20);
    let mut begun = open(&daemon, "POST /v1/runs", &[lines.as_bytes(), first_half].concat());
    daemon.call("GET", "/readyz", &Value::Null).expect(200);
    std::thread::sleep(Duration::from_millis(300));
    let began = boottime_ms();
    daemon.signal(Signal::TERM);
    // A request that was begun before is heard to its end, and answered.
    std::thread::sleep(Duration::from_millis(500));
    begun.write_all(second_half).expect("it still reads");
    let answer = read_all(begun);
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer:?}");
    assert_eq!(daemon.ended().code(), Some(0));
    let took = boottime_ms() - began;
    println!("{} connections that never end: {took} ms", held.len());
    assert!(took < BUSY_MS, "{took} ms");
    // What was half there is nowhere.
    daemon.start_again();
    let artifacts =
        daemon.call("GET", &format!("/v1/runs/{}/artifacts", claim["run_id"].as_str().expect("an id")), &Value::Null);
    assert_eq!(artifacts.expect(200), json!([]));
    assert_eq!(daemon.call("GET", "/v1/doctor", &Value::Null).expect(200)["broken"], json!([]));
}

/// A backup that nobody reads: the copy of the database is abandoned, and its file is gone after the next start.
#[test]
fn a_backup_under_way_does_not_hold_it_up() {
    let mut daemon = Daemon::start();
    let long = "x".repeat(200_000);
    for _ in 0..40 {
        let steps = json!([{"id": "a", "uses": "dut", "run": [long]}]);
        daemon.call("POST", "/v1/runs", &on_board(steps)).expect(422);
    }
    let backup = open(&daemon, "GET /v1/backup", b"\r\n");
    std::thread::sleep(Duration::from_millis(300));
    let took = stop(&mut daemon);
    println!("a backup that nobody reads: {took} ms");
    assert!(took < BUSY_MS, "{took} ms");
    drop(backup);
    daemon.start_again();
    wait_for("the copy is removed", || {
        let names = std::fs::read_dir(daemon.dir.path()).expect("it is there");
        let mut names = names.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
        (!names.any(|name| name.contains("backup"))).then_some(())
    });
}
