//! A bad line between clients and the daemon: requests and answers get lost at random, clients repeat with the same
//! key, and in the end exactly what was asked for has been done. The daemon is the built one, and is killed now and
//! then; the rows are the judge.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mediator::clock::boottime_ms;
use serde_json::{Value, json};

use crate::support::{Daemon, LIMIT_MS, requires, wait_for};

/// Clients at once, and how many rounds each does: a round is 6 changes.
const CLIENTS: usize = 8;
const ROUNDS: usize = 60;
/// After how many changes each the daemon is killed, and how often.
const KILL_EVERY: u64 = 700;
const KILLS: u64 = 4;
/// How often each accident happens, in percent.
const LOSES_REQUEST: u64 = 12;
const LOSES_ANSWER: u64 = 12;
const CUTS_ANSWER: u64 = 6;
const CUTS_REQUEST: u64 = 4;
const SENDS_TWICE: u64 = 6;

/// Random numbers that a seed repeats (SplitMix64).
struct Random(AtomicU64);

impl Random {
    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What happened on the line.
#[derive(Default)]
struct Line {
    passed: AtomicU64,
    request_lost: AtomicU64,
    request_cut: AtomicU64,
    answer_lost: AtomicU64,
    answer_cut: AtomicU64,
    sent_twice: AtomicU64,
}

/// A whole message, as it came: head, body.
fn read_message(reader: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut length = 0;
    loop {
        let from = bytes.len();
        if reader.read_until(b'\n', &mut bytes)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes[from..]).trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| std::io::ErrorKind::InvalidData)?;
        }
        if line.is_empty() {
            break;
        }
    }
    let from = bytes.len();
    bytes.resize(from + length, 0);
    reader.read_exact(&mut bytes[from..])?;
    Ok(bytes)
}

/// Sends bytes to an address on a connection of its own, and reads one whole answer.
fn exchange(address: &str, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(bytes)?;
    read_message(&mut BufReader::new(stream))
}

/// Takes connections for the daemon, one request each, and loses some.
fn proxy(daemon: Arc<Mutex<String>>, random: Arc<Random>, line: Arc<Line>, over: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let daemon = daemon.lock().unwrap().clone();
            let (random, line) = (Arc::clone(&random), Arc::clone(&line));
            std::thread::spawn(move || {
                let _ = pass_on(stream, &daemon, &random, &line);
            });
        }
    });
    address
}

fn pass_on(client: TcpStream, daemon: &str, random: &Random, line: &Line) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client);
    let request = read_message(&mut reader)?;
    let count = |what: &AtomicU64| what.fetch_add(1, Ordering::Relaxed);
    let mut accident = random.below(100);
    let mut happens = |share: u64| {
        let happens = accident < share;
        accident = if happens { u64::MAX } else { accident.saturating_sub(share) };
        happens
    };
    if happens(LOSES_REQUEST) {
        count(&line.request_lost);
        return Ok(());
    }
    if happens(CUTS_REQUEST) {
        // The daemon gets a part of it, then the end of the line.
        count(&line.request_cut);
        let part = usize::try_from(random.below(request.len() as u64)).unwrap_or(0);
        return TcpStream::connect(daemon)?.write_all(&request[..part]);
    }
    if happens(LOSES_ANSWER) {
        count(&line.answer_lost);
        if random.below(2) == 0 {
            // Hang up before the answer can have come, too.
            return TcpStream::connect(daemon)?.write_all(&request);
        }
        exchange(daemon, &request)?;
        return Ok(());
    }
    if happens(CUTS_ANSWER) {
        count(&line.answer_cut);
        let answer = exchange(daemon, &request)?;
        let part = usize::try_from(random.below(answer.len() as u64)).unwrap_or(0);
        return reader.get_mut().write_all(&answer[..part]);
    }
    if happens(SENDS_TWICE) {
        count(&line.sent_twice);
        let (daemon, request) = (daemon.to_owned(), request.clone());
        std::thread::spawn(move || exchange(&daemon, &request));
    }
    count(&line.passed);
    let answer = exchange(daemon, &request)?;
    reader.get_mut().write_all(&answer)
}

/// A client that repeats until it is answered.
struct Client {
    line: String,
    token: String,
    asked: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    replayed: Arc<AtomicU64>,
}

impl Client {
    /// Sends a request again and again, with the same key if it has one, until there is an answer; returns it.
    fn change(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
             {key}content-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.asked.fetch_add(1, Ordering::Relaxed);
        let until = boottime_ms() + LIMIT_MS;
        for attempt in 0.. {
            self.sent.fetch_add(1, Ordering::Relaxed);
            if let Ok(answer) = exchange(&self.line, request.as_bytes()) {
                let text = String::from_utf8(answer).expect("text");
                let (head, body) = text.split_once("\r\n\r\n").expect("a head");
                let status = head[9..12].parse().expect("a status");
                assert!(status < 500, "{method} {path}: {text}");
                if head.contains("idempotent-replayed: true") {
                    self.replayed.fetch_add(1, Ordering::Relaxed);
                }
                return (status, serde_json::from_str(body).unwrap_or(Value::Null));
            }
            assert!(boottime_ms() < until, "{method} {path} was never answered");
            std::thread::sleep(Duration::from_millis(1 << attempt.min(5)));
        }
        unreachable!()
    }
}

/// What a client knows to have done.
#[derive(Default)]
struct Done {
    /// Runs with the state that they must end in, and the exit code or answer of their step.
    runs: BTreeMap<String, (&'static str, Value)>,
    /// Runs that were rejected.
    rejected: BTreeMap<String, ()>,
}

/// A client with a node of its own: of each round it submits a run, works it off or cancels it, has a question
/// answered, is rejected, drains and undrains.
fn rounds(client: &Client, number: usize) -> Done {
    let (node, capability) = (format!("n{number}"), format!("board-{number}"));
    let instance = format!("{node}-1");
    let advert = json!({"node_id": node, "instance": instance, "capabilities": [{"capability": capability}]});
    let role = format!("dut={capability}");
    let mut done = Done::default();
    for round in 0..ROUNDS {
        let key = |what: &str| format!("c{number}-{round}-{what}");
        let ok = |(status, body): (u16, Value), wanted: u16| {
            assert_eq!(status, wanted, "client {number} round {round}: {body}");
            body
        };
        let run_of = |body: &Value| body["run_id"].as_str().expect("a run").to_owned();
        if round % 5 == 0 {
            ok(client.change("POST", "/v1/nodes", None, &advert), 200);
        }
        // A question first, then a command; what it is told is kept by the run, whoever lost it on the way.
        let contract = json!({"requires": requires(&[role.as_str()]), "steps": [
            {"id": "ask", "ask": {"prompt": "go?"}},
            {"id": "work", "uses": "dut", "run": ["true"]},
        ]});
        let body = ok(client.change("POST", "/v1/runs", Some(&key("submit")), &contract), 201);
        let run = run_of(&body);
        let answer = json!({"answer": format!("yes {round}")});
        ok(client.change("POST", &format!("/v1/runs/{run}/steps/1/answer"), Some(&key("answer")), &answer), 200);
        let second = ok(client.change("POST", "/v1/runs", Some(&key("second")), &contract), 202);
        let reason = json!({"reason": format!("round {round}")});
        ok(client.change("POST", &format!("/v1/runs/{}/cancel", run_of(&second)), Some(&key("cancel")), &reason), 200);
        done.runs.insert(run_of(&second), ("CANCELLED", Value::Null));
        let claim =
            ok(client.change("POST", &format!("/v1/nodes/{node}/claim"), None, &json!({"instance": instance})), 200);
        assert_eq!((claim["run_id"].as_str(), &claim["attempt"]), (Some(run.as_str()), &json!(1)), "nothing twice");
        let code = i64::try_from(round % 2).unwrap();
        let report = json!({"node_id": node, "nonce": claim["lease"]["nonce"], "attempt": 1, "exit_code": code});
        let result = ok(client.change("POST", &format!("/v1/runs/{run}/steps/2/result"), None, &report), 200);
        assert_eq!(result["state"], if code == 0 { "DONE" } else { "FAILED" });
        done.runs.insert(run, (if code == 0 { "SUCCEEDED" } else { "FAILED" }, json!(code)));
        match round % 3 {
            0 => {
                let never = json!({"requires": requires(&["dut=no-such-thing"]), "steps": [
                    {"id": "work", "uses": "dut", "run": ["true"]}]});
                let body = ok(client.change("POST", "/v1/runs", Some(&key("never")), &never), 422);
                done.rejected.insert(run_of(&body), ());
            }
            1 => {
                let drain = json!({"mode": "graceful", "reason": key("drain")});
                ok(client.change("POST", &format!("/v1/nodes/{node}/drain"), Some(&key("drain")), &drain), 200);
            }
            _ => {
                ok(
                    client.change("DELETE", &format!("/v1/nodes/{node}/drain"), Some(&key("undrain")), &Value::Null),
                    200,
                );
            }
        }
        if round % 3 == 1 {
            ok(client.change("DELETE", &format!("/v1/nodes/{node}/drain"), Some(&key("undrain")), &Value::Null), 200);
        }
    }
    done
}

/// "at the end the effects are exactly those asked for"
#[test]
fn what_is_lost_on_the_way_is_done_exactly_once() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).expect("random bytes");
        u64::from(u32::from_le_bytes(bytes))
    });
    eprintln!("SEED={seed}");
    let mut daemon = Daemon::with("[storage]\nsynchronous = \"normal\"\n");
    let (line, over) = (Arc::new(Line::default()), Arc::new(AtomicBool::new(false)));
    let place = |daemon: &Daemon| daemon.url().strip_prefix("http://").expect("an address").to_owned();
    let upstream = Arc::new(Mutex::new(place(&daemon)));
    let address =
        proxy(Arc::clone(&upstream), Arc::new(Random(AtomicU64::new(seed))), Arc::clone(&line), Arc::clone(&over));
    let (asked, sent, replayed) = (Arc::<AtomicU64>::default(), Arc::default(), Arc::default());
    let began = boottime_ms();
    let done: Mutex<Vec<Done>> = Mutex::default();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let client = Client {
                line: address.clone(),
                token: daemon.token().to_owned(),
                asked: Arc::clone(&asked),
                sent: Arc::clone(&sent),
                replayed: Arc::clone(&replayed),
            };
            let done = &done;
            scope.spawn(move || {
                let own = rounds(&client, number);
                done.lock().unwrap().push(own);
            });
        }
        for kill in 1..=KILLS {
            wait_for("the clients get on", || (asked.load(Ordering::Relaxed) >= kill * KILL_EVERY).then_some(()));
            daemon.kill();
            daemon.start_again();
            *upstream.lock().unwrap() = place(&daemon);
        }
    });
    over.store(true, Ordering::Relaxed);
    let count = |what: &AtomicU64| what.load(Ordering::Relaxed);
    let (asked, sent, replayed) = (count(&asked), count(&sent), count(&replayed));
    eprintln!(
        "{asked} changes asked for, {sent} requests in {} ms: {} passed, of the others {} lost before the daemon, {} \
         cut before it, {} answers lost, {} answers cut; {} sent twice; {replayed} replays seen; {KILLS} \
         kills",
        boottime_ms() - began,
        count(&line.passed),
        count(&line.request_lost),
        count(&line.request_cut),
        count(&line.answer_lost),
        count(&line.answer_cut),
        count(&line.sent_twice),
    );
    assert!(asked > 3_000 && sent > asked && replayed > 100, "the line was bad enough");
    // What was still on its way a second time has arrived: it changes nothing, and must not be counted before.
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        daemon.call("GET", "/readyz", &Value::Null).expect(200);
    }

    let done = done.into_inner().unwrap();
    let rows = daemon.rows();
    let number = |query: &str| rows.query_row(query, [], |row| row.get::<_, i64>(0)).expect("a number").unsigned_abs();
    let (runs, rejected): (usize, usize) =
        (done.iter().map(|d| d.runs.len()).sum(), done.iter().map(|d| d.rejected.len()).sum());
    assert_eq!(runs, 2 * CLIENTS * ROUNDS, "each submission is a run of its own");
    assert_eq!(rejected, CLIENTS * ROUNDS.div_ceil(3));
    assert_eq!(number("SELECT count(*) FROM runs"), (runs + rejected) as u64, "and there are no others");
    for own in &done {
        for (run, (state, code)) in &own.runs {
            let (found, result): (String, Option<String>) = rows
                .query_row(
                    "SELECT runs.state, steps.result FROM runs JOIN steps USING (run_id) WHERE run_id = ?1 AND seq = 2",
                    [run],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .expect("a run");
            let result: Value = result.map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"));
            assert_eq!((found.as_str(), &result["exit_code"]), (*state, code), "run {run}");
        }
    }
    let events = |event: &str| number(&format!("SELECT count(*) FROM events WHERE event = '{event}'"));
    let all = (CLIENTS * ROUNDS) as u64;
    let drains = CLIENTS as u64 * ((ROUNDS as u64 + 1) / 3);
    for (event, wanted) in [
        ("run.submitted", 2 * all + rejected as u64),
        ("run.ended", 2 * all + rejected as u64),
        ("ask.done", all),
        ("step.claimed", all),
        ("step.late-report", 0),
    ] {
        assert_eq!(events(event), wanted, "{event}");
    }
    assert_eq!(events("node.drained"), events("node.undrained"));
    assert_eq!(events("node.drained"), drains);
    // Each key that did something is there once; undraining what was not drained did nothing.
    let stored = 4 * all + rejected as u64 + events("node.drained") * 2;
    assert_eq!(number("SELECT count(*) FROM requests"), stored, "keys");
    assert_eq!(number("SELECT count(*) FROM leases"), 0);
    let broken = mediator::store::invariants::check(&rows).expect("the checks run");
    assert!(broken.is_empty(), "{} invariants are broken", broken.len());
}
