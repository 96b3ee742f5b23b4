//! Random kills for as long as asked (`make soak DURATION=60 SEED=7`): clients with keys, agents with real commands,
//! SIGKILL of the daemon and the agents at random moments. Everything that was acknowledged is noted and judged at the
//! end. The seed repeats every choice (what is asked, in which order, who is killed after how long), not the moment
//! within a transaction at which a kill falls: that is what the matrix is for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mediator::clock::boottime_ms;
use mediator::store::invariants;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Lab, Reply, exchange};
use crate::support::wait_for;

/// SplitMix64: a few lines, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        std::thread::sleep(Duration::from_millis(from_ms + self.below(to_ms - from_ms)));
    }
}

/// Where the daemon is to be found, alive or not.
#[derive(Clone)]
struct Address {
    address: String,
    token: String,
}

impl Address {
    /// Sends the same until there is an answer that says what became of it.
    fn insist(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let began = boottime_ms();
        loop {
            match exchange(&self.address, &self.token, method, path, key, &body) {
                Some(reply) if !matches!(reply.status, 429 | 503 | 507) => return reply,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(boottime_ms() - began < 120_000, "{method} {path}: no answer for two minutes");
        }
    }
}

/// What a client was told.
#[derive(Default)]
struct Model {
    /// Run id by the key of its submission.
    submitted: BTreeMap<String, String>,
    /// The state of a run after its cancel.
    cancelled: BTreeMap<String, String>,
    answers: usize,
    replays: usize,
}

/// One client until `until`.
fn client(name: u64, mut random: Random, until: i64, lab: &Address, starts: &Path) -> Model {
    let mut model = Model::default();
    let mut known: Vec<(String, String, Value)> = Vec::new();
    let mut number = 0;
    while boottime_ms() < until {
        number += 1;
        match random.below(10) {
            0..5 => {
                let key = format!("c{name}-{number}");
                let body = contract(&mut random, starts);
                let run = submit(lab, &key, &body).0;
                model.submitted.insert(key.clone(), run.clone());
                known.push((key, run, body));
            }
            5 if !known.is_empty() => {
                // The same again, long after its answer.
                let (key, run, body) = &known[usize::try_from(random.below(known.len() as u64)).expect("it is small")];
                let (again, is_replayed) = submit(lab, key, body);
                assert_eq!((&again, is_replayed), (run, true), "{key}");
                model.replays += 1;
            }
            6 if !known.is_empty() => {
                let (_, run, _) = &known[usize::try_from(random.below(known.len() as u64)).expect("it is small")];
                let (path, key) = (format!("/v1/runs/{run}/cancel"), format!("c{name}-{number}"));
                let reply = lab.insist("POST", &path, Some(&key), &json!({"reason": "soak"}));
                assert_eq!(reply.status, 200, "{}", reply.body);
                model.cancelled.insert(run.clone(), reply.body["state"].as_str().expect("a state").to_owned());
            }
            _ => model.answers += answer(lab, &format!("c{name}-{number}"), random.next()),
        }
        random.sleep(5, 60);
    }
    model
}

/// Returns the run, and whether the answer was a replay.
fn submit(lab: &Address, key: &str, body: &Value) -> (String, bool) {
    let reply = lab.insist("POST", "/v1/runs", Some(key), body);
    assert!(matches!(reply.status, 201 | 202), "{key}: {} {}", reply.status, reply.body);
    let run = reply.body["run_id"].as_str().expect("an id").to_owned();
    (run, reply.head.contains("idempotent-replayed: true"))
}

/// Answers one of the questions; says how many.
fn answer(lab: &Address, key: &str, random: u64) -> usize {
    let asks = lab.insist("GET", "/v1/asks", None, &Value::Null).body["asks"].clone();
    let asks = asks.as_array().expect("a list");
    if asks.is_empty() {
        return 0;
    }
    let ask = &asks[usize::try_from(random % asks.len() as u64).expect("it is small")];
    let path = format!("/v1/runs/{}/steps/{}/answer", ask["run_id"].as_str().expect("an id"), ask["seq"]);
    let reply = lab.insist("POST", &path, Some(key), &json!({"answer": "yes", "attempt": ask["attempt"]}));
    // Somebody else may have been first, or the run has ended.
    assert!(matches!(reply.status, 200 | 409), "{path}: {} {}", reply.status, reply.body);
    usize::from(reply.status == 200)
}

/// One or two boards, one or two commands, sometimes a question first. Each command notes that it began.
fn contract(random: &mut Random, starts: &Path) -> Value {
    let requires = json!([{"as": "dut", "capability": "board", "count": 1 + random.below(8) / 7}]);
    let mut steps = Vec::new();
    if random.below(5) == 0 {
        steps.push(json!({"id": "q", "ask": {"prompt": "go on?"}}));
    }
    for id in ["a", "b"].iter().take(1 + usize::from(random.below(3) == 0)) {
        let seconds = random.below(150);
        let file = starts.display();
        let exit = u64::from(random.below(8) == 0);
        let script = format!(
            "echo x >> {file}/$MEDIATOR_RUN_ID.$MEDIATOR_STEP.$MEDIATOR_ATTEMPT; sleep 0.{seconds:03}; echo done; exit {exit}"
        );
        steps.push(json!({"id": id, "uses": "dut", "run": ["sh", "-c", script]}));
    }
    json!({"requires": requires, "steps": steps})
}

/// An agent that may be killed.
struct Agent {
    config: PathBuf,
    child: Child,
}

impl Agent {
    fn start(config: PathBuf) -> Self {
        let child = Self::spawn(&config);
        Self { config, child }
    }

    fn spawn(config: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(["agent", "--config"]).arg(config).stdin(Stdio::null()).stderr(Stdio::null());
        for name in ["MEDIATOR_URL", "MEDIATOR_TOKEN", "MEDIATOR_DATA"] {
            command.env_remove(name);
        }
        command.spawn().expect("the agent starts")
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address that stays the daemon's while it is dead, since agents do not look for another: below the ports that
/// outgoing connections get, or one of them might take it, even one to the very port.
fn address_to_keep() -> String {
    let first = std::process::id() % 10_000;
    (0..10_000)
        .map(|at| format!("127.0.0.1:{}", 20_000 + (first + at) % 10_000))
        .find(|address| std::net::TcpListener::bind(address).is_ok())
        .expect("a free port")
}

#[test]
fn random_kills_lose_nothing_that_was_acknowledged() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SOAK_SECONDS").unwrap_or(10);
    let seed = number("SOAK_SEED").unwrap_or_else(|| boottime_ms().unsigned_abs());
    println!("soak: {seconds} s, seed {seed}");
    let mut random = Random(seed);
    let folder = tempfile::tempdir().expect("there is room");
    let (data, starts) = (folder.path().join("data"), folder.path().join("starts"));
    std::fs::create_dir(&starts).expect("there is room");
    let listen = address_to_keep();
    let lab = Lab { listen: Some(listen.clone()), ..Lab::default() };
    let mut daemon = Some(Daemon::start(&data, &lab).expect("it starts"));
    let token = std::fs::read_to_string(data.join("operator.token")).expect("a token").trim().to_owned();
    let address = Address { address: listen.clone(), token: token.clone() };
    let mut agents: Vec<Agent> = [["b1", "b2"], ["b3", "b4"]]
        .iter()
        .map(|nodes| {
            let dir = folder.path().join(nodes[0]);
            std::fs::create_dir(&dir).expect("there is room");
            let mut text =
                format!("url = \"http://{listen}\"\ntoken = \"{token}\"\nwork_dir = {:?}\n", dir.join("work"));
            for node in nodes {
                text += &format!("[[node]]\nid = \"{node}\"\ncapabilities = [{{ capability = \"board\" }}]\n");
            }
            std::fs::write(dir.join("agent.toml"), text).expect("there is room");
            Agent::start(dir.join("agent.toml"))
        })
        .collect();
    // A submission that no board exists for would be rejected.
    wait_for("four boards", || {
        let nodes = address.insist("GET", "/v1/nodes", None, &Value::Null).body;
        (nodes["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4)).then_some(())
    });

    let until = boottime_ms() + i64::try_from(seconds).expect("it is not that long") * 1000;
    let (mut daemon_kills, mut agent_kills) = (0, 0);
    let models: Vec<Model> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|name| {
                let (own, address, starts) = (Random(random.next()), address.clone(), &starts);
                scope.spawn(move || client(name, own, until, &address, starts))
            })
            .collect();
        while boottime_ms() < until {
            random.sleep(50, 700);
            let victim = random.below(5);
            if victim < 3 {
                daemon = None;
                daemon_kills += 1;
                random.sleep(1, 200);
                let again = Daemon::start(&data, &lab).expect("it starts again");
                let broken = invariants::check(&again.rows()).expect("rows can be read");
                assert!(broken.is_empty(), "seed {seed}: {broken:?}");
                daemon = Some(again);
            } else {
                let agent = &mut agents[usize::from(victim == 4)];
                agent.kill();
                agent_kills += 1;
                random.sleep(1, 200);
                agent.child = Agent::spawn(&agent.config);
            }
        }
        clients.into_iter().map(|client| client.join().expect("no client panics")).collect()
    });

    // Everybody is up now: what was begun comes to its end.
    let daemon = daemon.expect("it was started again");
    let rows = daemon.rows();
    let open = || -> i64 {
        rows.query_row("SELECT count(*) FROM runs WHERE ended_at IS NULL", [], |row| row.get(0)).expect("a number")
    };
    let (began, mut number) = (boottime_ms(), 0);
    while open() > 0 {
        number += 1;
        answer(&address, &format!("end-{number}"), 0);
        std::thread::sleep(Duration::from_millis(20));
        let limit = 60_000 + i64::try_from(seconds).expect("it is not that long") * 2000;
        assert!(boottime_ms() - began < limit, "seed {seed}: {} runs do not end", open());
    }
    drop(agents);

    let submitted: BTreeMap<&String, &String> = models.iter().flat_map(|model| &model.submitted).collect();
    let mut statement = rows.prepare("SELECT run_id, state FROM runs").expect("a query");
    let found: BTreeMap<String, String> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("rows")
        .map(|row| row.expect("a row"))
        .collect();
    let ids: BTreeSet<&String> = submitted.values().copied().collect();
    assert_eq!(ids.len(), submitted.len(), "seed {seed}: two keys had one run");
    assert_eq!(ids, found.keys().collect(), "seed {seed}: every submission was acknowledged, and each is one run");
    for (run, state) in models.iter().flat_map(|model| &model.cancelled) {
        assert_eq!(&found[run], state, "seed {seed}: run {run} had ended");
    }
    let count = |query: &str| -> i64 { rows.query_row(query, [], |row| row.get(0)).expect("a number") };
    for (what, query) in [
        ("leases", "SELECT count(*) FROM leases"),
        ("open history", "SELECT count(*) FROM lease_history WHERE \"to\" IS NULL"),
        (
            "runs without one end",
            "SELECT count(*) FROM runs WHERE 1 <> (SELECT count(*) FROM events
             WHERE events.run_id = runs.run_id AND event = 'run.ended')",
        ),
        (
            "keys of submissions that are missing",
            &format!("SELECT {} - count(*) FROM requests WHERE status IN (201, 202)", ids.len()),
        ),
    ] {
        assert_eq!(count(query), 0, "seed {seed}: {what}");
    }
    let broken = invariants::check(&rows).expect("rows can be read");
    assert!(broken.is_empty(), "seed {seed}: {broken:?}");
    // Each attempt of a command was begun once at most, and whatever succeeded was begun.
    let mut begun = BTreeSet::new();
    for entry in std::fs::read_dir(&starts).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file");
        // Killed between making the file and writing to it, the shell leaves an empty one.
        if text.is_empty() {
            continue;
        }
        assert_eq!(text, "x\n", "seed {seed}: {}", path.display());
        begun.insert(path.file_name().expect("a name").to_string_lossy().split('.').next().unwrap_or("").to_owned());
    }
    for (run, _) in found.iter().filter(|(_, state)| *state == "SUCCEEDED") {
        assert!(begun.contains(run), "seed {seed}: run {run} succeeded and never began");
    }
    let ended = |state: &str| found.values().filter(|found| *found == state).count();
    println!(
        "soak: {} runs ({} succeeded, {} failed, {} cancelled), {} answers, {} replays; killed: the daemon {daemon_kills} \
         times, agents {agent_kills} times",
        found.len(),
        ended("SUCCEEDED"),
        ended("FAILED"),
        ended("CANCELLED"),
        models.iter().map(|model| model.answers).sum::<usize>(),
        models.iter().map(|model| model.replays).sum::<usize>(),
    );
    assert!(daemon_kills > 0 && ended("SUCCEEDED") > 0, "seed {seed}: nothing was tried");
}
