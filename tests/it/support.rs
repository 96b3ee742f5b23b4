//! What the tests share: a daemon in this process whose clock stands still until a test moves it, and the built one.
#![allow(dead_code, reason = "each file uses its part")]

use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use mediator::clock::{Clock, Ms, boottime_ms};
use mediator::config::{Settings, Synchronous};
use mediator::domain::contract::Contract;
use mediator::domain::ids::NodeId;
use mediator::domain::json;
use mediator::domain::matching::{self, Capability, Node};
use mediator::http;
use mediator::store::{DATABASE, Store, invariants};
use rusqlite::{Connection, OpenFlags, Params};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The time at which every lab begins.
pub const START: Ms = 1_800_000_000_000;

/// How long a test waits for what must come: far more than it takes on a busy machine.
pub const LIMIT_MS: i64 = 40_000;

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    /// The body as JSON; null when it is none.
    pub body: Value,
}

impl Reply {
    /// Returns the body of an answer that must have this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self.body
    }

    /// Checks that this is the problem `code` with this status, and returns it.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.body["status"], status);
        assert!(self.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{}", self.body);
        self.body
    }

    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// An HTTP client with the one thread on which everything asynchronous of a test runs.
pub struct Http {
    pub rt: Runtime,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Http {
    pub fn new() -> Self {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { rt, pool: Pool::builder(TokioExecutor::new()).build(connector) }
    }

    /// Sends a request and waits for its answer.
    #[track_caller]
    pub fn send(&self, method: &str, url: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let call = async { self.request(method, url, headers, body).await };
        self.rt.block_on(call).expect("an answer")
    }

    /// Opens an event stream behind `after`, reads its first piece, and hangs up.
    pub fn opening(&self, url: &str, token: &str, after: i64) -> String {
        let request = Request::builder().uri(url).header("authorization", format!("Bearer {token}"));
        let request = request.header("last-event-id", after).body(Full::new(Bytes::new())).expect("a request");
        self.rt.block_on(async {
            let mut answer = self.pool.request(request).await.expect("an answer");
            let piece = answer.body_mut().frame().await.expect("a piece").expect("a piece");
            String::from_utf8(piece.into_data().expect("data").to_vec()).expect("text")
        })
    }

    fn request(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> impl Future<Output = Result<Reply, String>> + Send + 'static {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = self.pool.request(request.body(Full::new(body)).expect("a request"));
        async move {
            let limit = Duration::from_millis(LIMIT_MS.unsigned_abs());
            let exchange = async {
                let (head, body) = sent.await.map_err(|error| format!("{error:?}"))?.into_parts();
                let bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
                let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                Ok(Reply { status: head.status.as_u16(), headers: head.headers, bytes, body })
            };
            tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err("no answer came".into()))
        }
    }
}

/// A call that is under way.
pub struct Parked(JoinHandle<Result<Reply, String>>);

impl Parked {
    pub fn is_answered(&self) -> bool {
        self.0.is_finished()
    }
}

/// The writer is busy with a write that lasts as long as this.
pub struct HeldWriter {
    _release: std::sync::mpsc::Sender<()>,
}

/// A daemon in this process, with a clock that a test moves. At its end the rows must be in order.
pub struct Lab {
    pub dir: TempDir,
    pub clock: Clock,
    pub http: Http,
    settings: Settings,
    rows: Connection,
    up: Option<Up>,
    /// Whether rows that break an invariant were planted on purpose.
    pub is_broken: bool,
}

struct Up {
    store: Store,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    url: String,
    token: String,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a daemon with some settings changed.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let mut settings = Settings { synchronous: Synchronous::Normal, ..Settings::default() };
        change(&mut settings);
        let http = Http::new();
        let clock = Clock::manual(START);
        let up = Up::start(&http, dir.path(), &settings, &clock);
        let rows = open_rows(dir.path());
        Self { dir, clock, http, settings, rows, up: Some(up), is_broken: false }
    }

    fn up(&self) -> &Up {
        self.up.as_ref().expect("it is up")
    }

    pub fn store(&self) -> &Store {
        &self.up().store
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn url(&self) -> &str {
        &self.up().url
    }

    pub fn token(&self) -> &str {
        &self.up().token
    }

    /// Ends the daemon in good order, lets time pass, and starts it again on its folder.
    pub fn restart_after(&mut self, seconds: f64) {
        self.stop();
        self.clock.advance(Duration::from_secs_f64(seconds));
        self.start();
    }

    pub fn restart(&mut self) {
        self.restart_after(0.0);
    }

    pub fn stop(&mut self) {
        if let Some(up) = self.up.take() {
            up.end(&self.http);
        }
    }

    /// Starts the daemon that was stopped.
    pub fn start(&mut self) {
        assert!(self.up.is_none(), "it is up already");
        self.up = Some(Up::start(&self.http, self.dir.path(), &self.settings, &self.clock));
    }

    /// Changes the settings of the next start.
    pub fn change(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
    }

    /// Makes a token of another principal; the daemon is restarted to learn of it.
    pub fn token_of(&mut self, principal: &str) -> String {
        self.token_with_role(principal, "operator")
    }

    /// Likewise, with a role that the schema does not know yet: whatever is no operator is one of the others.
    pub fn token_with_role(&mut self, principal: &str, role: &str) -> String {
        use sha2::Digest as _;
        let text = format!("mdt_{principal}_{}", "0".repeat(52));
        let hash: [u8; 32] = sha2::Sha256::digest(text.as_bytes()).into();
        self.stop();
        let outside = self.outside();
        outside.pragma_update(None, "ignore_check_constraints", true).expect("a setting");
        outside
            .execute(
                "INSERT INTO tokens (token_id, principal, role, hash, created_at) VALUES (?1, ?1, ?3, ?2, 0)",
                (principal, &hash[..], role),
            )
            .expect("a token");
        self.start();
        text
    }

    // ---- calls

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Parked {
        let token = format!("Bearer {}", self.token());
        let mut all = headers.to_vec();
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            all.push(("authorization", &token));
        }
        all.retain(|(_, value)| !value.is_empty());
        let call = self.http.request(method, &format!("{}{path}", self.url()), &all, body);
        Parked(self.http.rt.spawn(call))
    }

    /// Sends a request with headers of its own; an empty header is left out.
    #[track_caller]
    pub fn call_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        self.join(self.send(method, path, headers, body.into()))
    }

    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.join(self.park(method, path, body))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &Value::Null)
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn put(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.call_with("PUT", path, &[], body)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, body)
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path, &Value::Null)
    }

    /// Sends a request with an idempotency key.
    #[track_caller]
    pub fn keyed(&self, method: &str, path: &str, key: &str, body: &Value) -> Reply {
        self.join(self.park_keyed(method, path, key, body))
    }

    /// Sends a request with an idempotency key, and does not wait for its answer.
    pub fn park_keyed(&self, method: &str, path: &str, key: &str, body: &Value) -> Parked {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.send(method, path, &[("idempotency-key", key)], body)
    }

    /// Sends a call and does not wait for its answer.
    pub fn park(&self, method: &str, path: &str, body: &Value) -> Parked {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.send(method, path, &[], body)
    }

    /// Waits for the answer to a parked call.
    #[track_caller]
    pub fn join(&self, parked: Parked) -> Reply {
        self.http.rt.block_on(parked.0).expect("the call did not panic").expect("an answer")
    }

    /// Lets everything that can happen happen, and says whether a parked call is still unanswered.
    pub fn is_parked(&self, parked: &Parked) -> bool {
        for _ in 0..3 {
            self.get("/readyz").expect(200);
        }
        !parked.0.is_finished()
    }

    /// Lets calls that are parked do what they were woken for, until nothing moves any more.
    pub fn quiesce(&self) {
        for _ in 0..3 {
            self.http.rt.block_on(async {
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                self.store().write(|_| Ok(())).await.expect("a write");
            });
        }
    }

    /// Keeps the writer busy until the returned value is dropped: what is sent meanwhile waits together.
    pub fn hold_writer(&self) -> HeldWriter {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begins, has_begun) = tokio::sync::oneshot::channel();
        let store = self.store().clone();
        drop(self.http.rt.spawn(async move {
            let state = std::sync::Mutex::new((held, Some(begins)));
            let wait = move || {
                let mut state = state.lock().expect("no holder panics");
                state.1.take().map(|begins| begins.send(()));
                state.0.recv().is_ok()
            };
            store.write(move |_| Ok(wait())).await
        }));
        // It must have begun: what comes a moment later would share its commit, and what it waits for.
        self.http.rt.block_on(has_begun).expect("the writer has taken it");
        HeldWriter { _release: release }
    }

    /// Calls that were sent before have reached the writer once reads that are sent after them are answered.
    pub fn let_wait(&self) {
        for _ in 0..4 {
            self.get("/v1/runs?limit=1").expect(200);
        }
    }

    /// Returns the answer to a parked call if it has come.
    pub fn answered(&self, parked: &mut Option<Parked>) -> Option<Reply> {
        let is_there = parked.as_ref().is_some_and(|parked| parked.0.is_finished());
        parked.take_if(|_| is_there).map(|parked| self.join(parked))
    }

    // ---- time

    /// Moves the clock and waits until everything that fell due has been handled.
    pub fn advance(&self, seconds: f64) {
        self.clock.advance(Duration::from_secs_f64(seconds));
        self.settle();
    }

    /// Waits until the reaper has handled what is due: the first write may be answered just before it, the second
    /// comes after it, and what it made due is handled likewise.
    pub fn settle(&self) {
        self.store().poke();
        for _ in 0..4 {
            self.http.rt.block_on(self.store().write(|_| Ok(()))).expect("a write");
        }
    }

    pub fn now(&self) -> Ms {
        self.clock.now()
    }

    // ---- nodes

    /// Advertises a node with the instance `NODE-1`.
    #[track_caller]
    pub fn node(&self, node: &str, capabilities: &[&str]) -> Value {
        self.advert(node, &format!("{node}-1"), capabilities)
    }

    /// Advertises a node. A capability is written `board` or `board model=rpi4 slots=2`.
    #[track_caller]
    pub fn advert(&self, node: &str, instance: &str, capabilities: &[&str]) -> Value {
        self.post("/v1/nodes", &advert(node, instance, capabilities)).expect(200)
    }

    #[track_caller]
    pub fn static_node(&self, node: &str, capabilities: &[&str]) -> Value {
        let body = json!({"node_id": node, "static": true, "capabilities": parse_capabilities(capabilities)});
        self.post("/v1/nodes", &body).expect(200)
    }

    /// Sends the same advert again as the node's rows have it: a heartbeat.
    #[track_caller]
    pub fn heartbeat(&self, node: &str) -> Value {
        let (instance, capabilities, cleans): (String, String, bool) =
            self.row("SELECT instance, capabilities, cleans FROM nodes WHERE node_id = ?1", [node], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            });
        let capabilities: Value = serde_json::from_str(&capabilities).expect("JSON");
        let advert = json!({"node_id": node, "instance": instance, "capabilities": capabilities, "cleans": cleans});
        self.post("/v1/nodes", &advert).expect(200)
    }

    /// Lets time pass in steps in which all these nodes give signs of life.
    pub fn pass(&self, seconds: f64, nodes: &[&str]) {
        let mut left = seconds;
        while left > 0.0 {
            let step = left.min(20.0);
            self.advance(step);
            for node in nodes {
                self.heartbeat(node);
            }
            left -= step;
        }
    }

    #[track_caller]
    pub fn show_node(&self, node: &str) -> Value {
        self.get(&format!("/v1/nodes/{node}")).expect(200)
    }

    // ---- runs

    #[track_caller]
    pub fn submit(&self, contract: &Value) -> Reply {
        self.post("/v1/runs", contract)
    }

    /// Submits a contract that must be placed at once; returns its id.
    #[track_caller]
    pub fn placed(&self, contract: &Value) -> String {
        id_of(&self.submit(contract).expect(201))
    }

    /// Submits a contract that must wait; returns its id.
    #[track_caller]
    pub fn queued(&self, contract: &Value) -> String {
        id_of(&self.submit(contract).expect(202))
    }

    /// Submits a contract that must be taken; returns its id.
    #[track_caller]
    pub fn queued_or_placed(&self, contract: &Value) -> String {
        let reply = self.submit(contract);
        assert!(matches!(reply.status, 201 | 202), "{}", reply.body);
        id_of(&reply.body)
    }

    #[track_caller]
    pub fn run(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}")).expect(200)
    }

    /// Returns a run's state, behind it its verdict's kind if it has one: `FAILED node-lost`.
    #[track_caller]
    pub fn state(&self, run: &str) -> String {
        let view = self.run(run);
        let state = view["state"].as_str().expect("a state");
        view["verdict"]["kind"].as_str().map_or(state.to_owned(), |kind| format!("{state} {kind}"))
    }

    /// Returns the states of a run's steps, as `DONE PENDING`.
    #[track_caller]
    pub fn steps(&self, run: &str) -> String {
        let view = self.run(run);
        let steps = view["steps"].as_array().expect("steps");
        steps.iter().map(|step| step["state"].as_str().expect("a state")).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    pub fn cancel(&self, run: &str) -> Value {
        self.post(&format!("/v1/runs/{run}/cancel"), &json!({})).expect(200)
    }

    /// Returns what a node holds: the run's id.
    #[track_caller]
    pub fn holder(&self, node: &str) -> Option<String> {
        self.show_node(node)["lease"]["run_id"].as_str().map(str::to_owned)
    }

    // ---- work

    /// Claims for the instance `NODE-1`.
    #[track_caller]
    pub fn claim(&self, node: &str) -> Option<Value> {
        let reply = self.post(&format!("/v1/nodes/{node}/claim"), &json!({"instance": format!("{node}-1")}));
        match reply.status {
            204 => None,
            _ => Some(reply.expect(200)),
        }
    }

    /// Claims a step that must be there.
    #[track_caller]
    pub fn claimed(&self, node: &str) -> Value {
        self.claim(node).expect("a step to claim")
    }

    /// Reports on a claim of this node.
    #[track_caller]
    pub fn report(&self, node: &str, claim: &Value, outcome: Value) -> Reply {
        self.post(&result_path(claim), &report(node, claim, outcome))
    }

    /// Claims and ends a step of this node with this exit code; returns the step's id.
    #[track_caller]
    pub fn work(&self, node: &str, exit_code: i64) -> String {
        let claim = self.claimed(node);
        self.report(node, &claim, json!({"exit_code": exit_code})).expect(200);
        claim["id"].as_str().expect("an id").to_owned()
    }

    #[track_caller]
    pub fn answer(&self, run: &str, seq: i64, answer: &str) -> Reply {
        self.post(&format!("/v1/runs/{run}/steps/{seq}/answer"), &json!({"answer": answer}))
    }

    // ---- rows

    /// Reads one row, beside the daemon.
    #[track_caller]
    pub fn row<T>(
        &self,
        query: &str,
        params: impl Params,
        read: impl FnOnce(&rusqlite::Row) -> rusqlite::Result<T>,
    ) -> T {
        self.rows.query_row(query, params, read).expect("a row")
    }

    /// Reads one number.
    #[track_caller]
    pub fn number(&self, query: &str) -> i64 {
        self.row(query, [], |row| row.get(0))
    }

    /// Counts the rows of all tables that a submission could write to.
    #[track_caller]
    pub fn all_rows(&self) -> i64 {
        ["runs", "steps", "leases", "lease_history", "attempts", "events"]
            .iter()
            .map(|table| self.number(&format!("SELECT count(*) FROM {table}")))
            .sum()
    }

    pub fn rows(&self) -> &Connection {
        &self.rows
    }

    /// Counts the events of a name.
    #[track_caller]
    pub fn events(&self, event: &str) -> i64 {
        self.row("SELECT count(*) FROM events WHERE event = ?1", [event], |row| row.get(0))
    }

    /// Opens a connection that can write from outside.
    pub fn outside(&self) -> Connection {
        let conn = Connection::open(self.dir.path().join(DATABASE)).expect("the database");
        conn.busy_timeout(Duration::from_secs(20)).expect("a time-out");
        conn
    }

    /// Returns what is not as it must be: rows that break an invariant, and waiting runs that could start (I6).
    pub fn wrong(&self) -> Vec<String> {
        let broken = invariants::check(&self.rows).expect("the checks run");
        let mut wrong: Vec<String> = broken.iter().map(|b| format!("{}: {}", b.invariant, b.what)).collect();
        wrong.extend(could_start(&self.rows, self.now(), &self.settings));
        wrong
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.is_broken {
            if self.up.is_some() {
                self.settle();
            }
            assert_eq!(self.wrong(), Vec::<String>::new());
        }
        self.stop();
    }
}

impl Up {
    fn start(http: &Http, dir: &Path, settings: &Settings, clock: &Clock) -> Self {
        let store = Store::open(dir, settings.clone(), clock.clone()).expect("the store opens");
        let token = std::fs::read_to_string(dir.join("operator.token")).expect("a token").trim().to_owned();
        let (stop, stopping) = watch::channel(false);
        let listener = http.rt.block_on(http::bind("127.0.0.1:0")).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = http.rt.spawn(http::serve(listener, None, store.clone(), stopping));
        Self { store, stop, serving, url, token }
    }

    fn end(self, http: &Http) {
        let _ = self.stop.send(true);
        let _ = http.rt.block_on(self.serving);
        self.store.close();
    }
}

pub fn open_rows(dir: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let rows = Connection::open_with_flags(dir.join(DATABASE), flags).expect("the database");
    rows.busy_timeout(Duration::from_secs(20)).expect("a time-out");
    rows
}

/// The nodes on which a lease may be granted now, as the rows say, in the order in which matching tries them.
pub fn available(rows: &Connection, now: Ms, settings: &Settings) -> Vec<Node> {
    let mut statement = rows
        .prepare_cached(
            "SELECT node_id, static, capabilities FROM nodes
             WHERE (static = 1 OR (silent = 0 AND live_until > ?1 AND last_seen + ?2 > ?1))
               AND owner_mode IS NULL AND operator_mode IS NULL
               AND node_id NOT IN (SELECT node_id FROM leases)
               AND node_id NOT IN (SELECT node_id FROM cleanings)",
        )
        .expect("SQL");
    let nodes = statement.query_map((now, settings.node_forget_ms), |row| {
        let capabilities: Vec<Capability> = serde_json::from_str(&row.get::<_, String>(2)?).expect("JSON");
        let id = NodeId::from_stored(row.get::<_, String>(0)?);
        Ok(Node { id, agent: !row.get::<_, bool>(1)?, capabilities })
    });
    let mut nodes: Vec<Node> = nodes.expect("rows").collect::<Result<_, _>>().expect("rows");
    nodes.sort_by(|a, b| (a.weight(), &a.id).cmp(&(b.weight(), &b.id)));
    nodes
}

/// Reads a contract as it is stored.
pub fn contract(text: &str) -> Contract {
    Contract::parse(&json::parse(text.as_bytes()).expect("JSON")).expect("a contract")
}

/// Returns the waiting runs that would fit the nodes that are free now; runs that could be too wide are left out,
/// since the last sweep may have left them for their width (I6).
pub fn could_start(rows: &Connection, now: Ms, settings: &Settings) -> Vec<String> {
    let nodes = available(rows, now, settings);
    let nodes: Vec<&Node> = nodes.iter().collect();
    let mut statement = rows.prepare_cached("SELECT run_id, contract FROM runs WHERE state = 'QUEUED'").expect("SQL");
    let queue = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let mut wrong = Vec::new();
    for row in queue.expect("rows") {
        let (run, text) = row.expect("a row");
        let requires = contract(&text).requires;
        let most: usize = requires.roles.iter().map(|role| role.count).sum();
        if most <= settings.lease_max_per_run && matching::fit(&requires, &nodes).is_some() {
            wrong.push(format!("I6: run {run} waits and fits"));
        }
    }
    wrong
}

// ---- bodies

/// Makes an advert. A capability is written `board` or `board model=rpi4 slots=2`.
pub fn advert(node: &str, instance: &str, capabilities: &[&str]) -> Value {
    json!({"node_id": node, "instance": instance, "capabilities": parse_capabilities(capabilities)})
}

fn parse_capabilities(capabilities: &[&str]) -> Value {
    let parse = |text: &&str| {
        let mut words = text.split(' ');
        let name = words.next().expect("a name");
        let attrs: serde_json::Map<String, Value> = words
            .map(|word| word.split_once('=').expect("key=value"))
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect();
        json!({"capability": name, "attrs": attrs})
    };
    capabilities.iter().map(parse).collect()
}

/// Makes `requires` from `role=capability` words.
pub fn requires(roles: &[&str]) -> Value {
    let role = |text: &&str| {
        let (role, capability) = text.split_once('=').expect("role=capability");
        json!({"as": role, "capability": capability})
    };
    roles.iter().map(role).collect()
}

/// Makes a run step.
pub fn step(id: &str, uses: &str) -> Value {
    json!({"id": id, "uses": uses, "run": ["true"]})
}

/// Makes a contract for one board, with one command.
pub fn one_step() -> Value {
    json!({"requires": requires(&["dut=board"]), "steps": [step("work", "dut")]})
}

/// Makes a contract for one board, with these steps.
pub fn on_board(steps: Value) -> Value {
    json!({"requires": requires(&["dut=board"]), "steps": steps})
}

/// Sets a field of an object.
pub fn with(mut value: Value, field: &str, new: impl Into<Value>) -> Value {
    value[field] = new.into();
    value
}

#[track_caller]
pub fn id_of(view: &Value) -> String {
    view["run_id"].as_str().expect("a run").to_owned()
}

pub fn result_path(claim: &Value) -> String {
    format!("/v1/runs/{}/steps/{}/result", claim["run_id"].as_str().expect("a run"), claim["seq"])
}

/// Makes the report on a claim; `outcome` may override any field.
pub fn report(node: &str, claim: &Value, outcome: Value) -> Value {
    let mut body = json!({"node_id": node, "nonce": claim["lease"]["nonce"], "attempt": claim["attempt"]});
    for (name, value) in outcome.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Waits until `found` finds something; when it does not, fails with what it was to be.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = boottime_ms() + LIMIT_MS;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(boottime_ms() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The built daemon, on a folder of its own.
pub struct Daemon {
    pub dir: TempDir,
    pub http: Http,
    child: Option<Child>,
    config: String,
    env: Vec<(String, String)>,
    url: String,
    token: String,
}

impl Daemon {
    pub fn start() -> Self {
        Self::with("")
    }

    /// Starts it with a file of settings.
    pub fn with(config: &str) -> Self {
        Self::on(tempfile::tempdir().expect("there is room"), config)
    }

    /// Starts it on a folder.
    pub fn on(dir: TempDir, config: &str) -> Self {
        Self::set_up(dir, config, &[])
    }

    /// Starts it with more variables.
    pub fn with_env(env: &[(&str, &str)]) -> Self {
        Self::with_file_and_env("", env)
    }

    pub fn with_file_and_env(config: &str, env: &[(&str, &str)]) -> Self {
        Self::set_up(tempfile::tempdir().expect("there is room"), config, env)
    }

    fn set_up(dir: TempDir, config: &str, env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (http, config) = (Http::new(), config.to_owned());
        let mut daemon = Self { dir, http, child: None, config, env, url: String::new(), token: String::new() };
        daemon.start_again();
        daemon
    }

    /// Starts it on its folder, and waits until it is ready.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        // Beside the data, in a folder that is the test's own.
        let config = self.dir.path().join("test.toml");
        std::fs::write(&config, &self.config).expect("it can be written");
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("test.log"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(self.dir.path())
            .arg("--config")
            .arg(config)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(log.expect("it can be written"))
            .spawn()
            .expect("the daemon starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("standard output");
        std::io::BufReader::new(out).read_line(&mut line).expect("a line");
        self.child = Some(child);
        self.url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("said {line:?}")).to_owned();
        let token = std::fs::read_to_string(self.dir.path().join("operator.token")).expect("a token");
        self.token = token.trim().to_owned();
    }

    /// Kills it, at once and without a word.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child.as_ref().expect("it runs"));
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// What it has said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("test.log")).expect("it is there")
    }

    /// Sends bytes as they are, and waits until something is answered or the connection ends.
    pub fn raw(&self, text: &str) {
        use std::io::{Read as _, Write as _};
        let address = self.url.strip_prefix("http://").expect("an address");
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream.write_all(text.as_bytes()).expect("it reads");
        let _ = stream.read(&mut [0; 512]);
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Waits until it has ended by itself.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().expect("it runs");
        wait_for("the daemon's end", || child.try_wait().expect("it is ours"))
    }

    /// Sends a call that need not be answered.
    pub fn tried(&self, method: &str, path: &str, body: &Value) -> Result<Reply, String> {
        let (token, url) = (format!("Bearer {}", self.token), format!("{}{path}", self.url));
        let call =
            async { self.http.request(method, &url, &[("authorization", &token)], body.to_string().into()).await };
        self.http.rt.block_on(call)
    }

    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.call_with(method, path, &[], body)
    }

    #[track_caller]
    pub fn call_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let token = format!("Bearer {}", self.token);
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let url = format!("{}{path}", self.url);
        let mut all = vec![("authorization", token.as_str())];
        all.extend(headers);
        let call = async { self.http.request(method, &url, &all, body).await };
        self.http.rt.block_on(call).expect("an answer")
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn rows(&self) -> Connection {
        open_rows(self.dir.path())
    }

    /// Sends a call and kills the daemon so much later; says whether the call was answered 200.
    pub fn killed_during(&mut self, delay: Duration, method: &str, path: &str, body: &Value) -> bool {
        let mut child = self.child.take().expect("it runs");
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        });
        let token = format!("Bearer {}", self.token);
        let url = format!("{}{path}", self.url);
        let call =
            async { self.http.request(method, &url, &[("authorization", &token)], body.to_string().into()).await };
        let answer = self.http.rt.block_on(call);
        killer.join().expect("no panic");
        answer.is_ok_and(|reply| reply.status == 200)
    }

    /// The environment that a command needs to find it.
    pub fn env(&self) -> [(&'static str, String); 2] {
        [("MEDIATOR_URL", self.url.clone()), ("MEDIATOR_TOKEN", self.token.clone())]
    }

    /// Runs a command of the built program against it, to its end.
    pub fn mediator(&self, args: &[&str]) -> Done {
        let child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(self.env())
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        Done {
            code: child.status.code().unwrap_or(-1),
            bytes: child.stdout.clone(),
            out: String::from_utf8_lossy(&child.stdout).into_owned(),
            err: String::from_utf8_lossy(&child.stderr).into_owned(),
        }
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn put(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        let token = format!("Bearer {}", self.token);
        self.http.send("PUT", &format!("{}{path}", self.url), &[("authorization", &token)], body.into())
    }

    /// Claims for the instance `NODE-1`, and waits for a step.
    #[track_caller]
    pub fn claimed(&self, node: &str) -> Value {
        let path = format!("/v1/nodes/{node}/claim?wait_seconds=20");
        self.call("POST", &path, &json!({"instance": format!("{node}-1")})).expect(200)
    }

    /// Advertises a node with the instance `NODE-1`.
    #[track_caller]
    pub fn node(&self, node: &str, capabilities: &[&str]) {
        self.call("POST", "/v1/nodes", &advert(node, &format!("{node}-1"), capabilities)).expect(200);
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &Value::Null)
    }

    /// Follows the events, behind the event with this id or from now on.
    pub fn events(&self, query: &str, after: Option<i64>) -> Stream {
        Stream::open(&format!("{}/v1/events{query}", self.url), &self.token, after)
    }
}

/// Opens a copy of a dead daemon's database: opening that itself would put in order what the daemon has to.
pub fn copy_of(folder: &Path) -> (TempDir, Connection) {
    let copy = tempfile::tempdir().expect("there is room");
    for suffix in ["", "-wal"] {
        let name = format!("{DATABASE}{suffix}");
        if folder.join(&name).exists() {
            std::fs::copy(folder.join(&name), copy.path().join(&name)).expect("there is room");
        }
    }
    let rows = Connection::open(copy.path().join(DATABASE)).expect("the database");
    (copy, rows)
}

/// What a finished command left.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub bytes: Vec<u8>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Asserts the exit code, and shows everything if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        self
    }
}

/// An event as it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: i64,
    pub name: String,
    pub data: Value,
}

/// A stream of events, read by a thread of its own.
pub struct Stream {
    events: std::sync::mpsc::Receiver<Event>,
    begins_behind: i64,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    reading: Option<std::thread::JoinHandle<()>>,
}

impl Stream {
    fn open(url: &str, token: &str, after: Option<i64>) -> Self {
        let (url, token) = (url.to_owned(), format!("Bearer {token}"));
        let (sender, events) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_open) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            let http = Http::new();
            let mut request = Request::builder().uri(url).header("authorization", token);
            if let Some(after) = after {
                request = request.header("last-event-id", after);
            }
            let sent = http.pool.request(request.body(Full::new(Bytes::new())).expect("a request"));
            let reading = async {
                let mut answer = sent.await.expect("an answer");
                assert_eq!(answer.status(), 200);
                let mut text = String::new();
                while let Some(Ok(frame)) = answer.body_mut().frame().await {
                    let Ok(bytes) = frame.into_data() else { continue };
                    text.push_str(std::str::from_utf8(&bytes).expect("events are cut between characters"));
                    let opening = text.split_once("\n\n").map_or("", |(opening, _)| opening);
                    let id = opening.lines().find_map(|line| line.strip_prefix("id: "));
                    if let Some(id) = id {
                        let _ = ready.send(id.parse().expect("a number"));
                    }
                    while let Some((block, rest)) = text.split_once("\n\n") {
                        let event = parse_event(block);
                        text = rest.to_owned();
                        if event.is_some_and(|event| sender.send(event).is_err()) {
                            return;
                        }
                    }
                }
            };
            http.rt.block_on(async {
                tokio::select! { () = reading => {}, _ = stopped => {} }
            });
        });
        let limit = Duration::from_millis(LIMIT_MS.unsigned_abs());
        let begins_behind = is_open.recv_timeout(limit).expect("the stream opens");
        Self { events, begins_behind, stop: Some(stop), reading: Some(reading) }
    }

    /// Returns the id that the stream told at its opening.
    pub fn begins_behind(&self) -> i64 {
        self.begins_behind
    }

    /// Returns the next event.
    #[track_caller]
    pub fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_millis(LIMIT_MS.unsigned_abs())).expect("an event")
    }

    /// Returns the events up to the first that is looked for, that one included.
    #[track_caller]
    pub fn until(&self, is_last: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut list = Vec::new();
        loop {
            list.push(self.next());
            if list.last().is_some_and(&is_last) {
                return list;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

fn parse_event(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let name = field("event")?.to_owned();
    let data = serde_json::from_str(field("data")?).expect("JSON");
    Some(Event { id: field("id")?.parse().expect("a number"), name, data })
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
