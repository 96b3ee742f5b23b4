//! A daemon that speaks the agent's part of the wire and otherwise does as a test tells it.
//!
//! It has one node's worth of memory: steps to give out one at a time, the one in hand, and what was sent about them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mediator::clock::boottime_ms;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::wait_for;

/// How the daemon stands and what it was told.
pub struct State {
    /// Steps to give out.
    pub steps: VecDeque<Value>,
    /// The step in hand.
    pub held: Option<Value>,
    /// The lease on the node: its run and nonce.
    pub lease: Option<(String, String)>,
    /// What leases are told to have left, in seconds.
    pub ttl_seconds: f64,
    /// How soon agents are told to advertise.
    pub renew_seconds: f64,
    /// Every advert, and when it came (boottime).
    pub adverts: Vec<(i64, Value)>,
    /// Every claim.
    pub claims: Vec<Value>,
    /// Every result: its query and its body.
    pub results: Vec<(String, Value)>,
    /// Logs by `run/seq/attempt`.
    pub logs: BTreeMap<String, Vec<u8>>,
    /// How many log requests were taken.
    pub log_puts: usize,
    /// Artifacts by `run/seq/path`.
    pub artifacts: BTreeMap<String, Vec<u8>>,
    /// No request is answered: its connection is closed.
    pub away: bool,
    /// So many results act but are not answered.
    pub lose_answers: u32,
    /// Refuse adverts with this status and code.
    pub refuse_adverts: Option<(u16, &'static str)>,
    /// Refuse the next claims, one each.
    pub refuse_claims: VecDeque<(u16, &'static str)>,
    /// Refuse results.
    pub refuse_results: Option<(u16, &'static str)>,
    /// Artifacts larger than this are too large.
    pub artifact_max: usize,
    /// A finished step is forgotten only by the daemon, not taken from its hand: the next claim gives it again.
    pub redeliver: bool,
}

/// A running fake daemon.
pub struct FakeDaemon {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    port: u16,
}

impl FakeDaemon {
    /// Starts one on a free port, on a thread of its own.
    pub fn start() -> Self {
        let state = State {
            steps: VecDeque::new(),
            held: None,
            lease: None,
            ttl_seconds: 60.0,
            renew_seconds: 0.2,
            adverts: Vec::new(),
            claims: Vec::new(),
            results: Vec::new(),
            logs: BTreeMap::new(),
            log_puts: 0,
            artifacts: BTreeMap::new(),
            away: false,
            lose_answers: 0,
            refuse_adverts: None,
            refuse_claims: VecDeque::new(),
            refuse_results: None,
            artifact_max: usize::MAX,
            redeliver: false,
        };
        let (state, changed) = (Arc::new(Mutex::new(state)), watch::Sender::new(0));
        let (told, port) = std::sync::mpsc::channel();
        let (shared, wake) = (state.clone(), changed.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
            runtime.block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("there is a free port");
                told.send(listener.local_addr().expect("it is bound").port()).expect("the test waits for it");
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let (shared, wake) = (shared.clone(), wake.clone());
                    tokio::spawn(async move {
                        let service = service_fn(|request| answer(request, &shared, &wake));
                        let connection =
                            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                        let _ = connection.await;
                    });
                }
            });
        });
        Self { state, changed, port: port.recv().expect("it starts") }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Looks at the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Changes the state and wakes parked claims.
    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.send_modify(|version| *version += 1);
    }

    /// Gives a step out: a shell script, with more fields of the claim.
    pub fn give(&self, run_id: &str, script: &str, more: Value) {
        self.set(|state| state.steps.push_back(step(run_id, &["sh", "-c", script], more)));
    }

    /// Waits until the state has what is looked for.
    pub fn wait<T>(&self, what: &str, mut found: impl FnMut(&State) -> Option<T>) -> T {
        wait_for(what, || found(&self.state()))
    }

    /// Waits for the first result of a run.
    pub fn result(&self, run_id: &str) -> Value {
        self.wait(&format!("the result of {run_id}"), |state| {
            let mut results = state.results.iter();
            results.find(|(at, _)| at.starts_with(&format!("{run_id}/"))).map(|(_, body)| body.clone())
        })
    }

    /// Returns a log as text.
    pub fn log(&self, run_id: &str) -> String {
        let state = self.state();
        let log = state.logs.get(&format!("{run_id}/1/1")).cloned().unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until a log holds `text`.
    pub fn wait_log(&self, run_id: &str, text: &str) {
        wait_for(&format!("{text:?} in the log of {run_id}"), || self.log(run_id).contains(text).then_some(()));
    }
}

/// Returns a claim's answer, its lease left out.
pub fn step(run_id: &str, run: &[&str], more: Value) -> Value {
    let mut step = json!({
        "run_id": run_id, "seq": 1, "id": "work", "kind": "run", "attempt": 1, "uses": "dut", "run": run, "env": {},
        "pass_env": [], "timeout_seconds": null, "artifacts": [],
        "assigned": [{"as": "dut", "nodes": [{"node_id": "n", "label": "", "attrs": {"model": "rpi4"}}]}],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        step[key] = value.clone();
    }
    step
}

type Answered = Result<Response<Full<Bytes>>, io::Error>;

async fn answer(request: Request<Incoming>, state: &Mutex<State>, changed: &watch::Sender<u64>) -> Answered {
    let lock = || state.lock().expect("no holder panics");
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let away = || io::Error::other("away");
    if lock().away {
        return Err(away());
    }
    if head.headers.get("authorization").is_none_or(|value| value != "Bearer secret-token") {
        return problem(401, "unauthorized", json!({}));
    }
    let path: Vec<&str> = head.uri.path().trim_start_matches("/v1/").split('/').collect();
    let query = head.uri.query().unwrap_or_default();
    let json = || serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let answered = match (&head.method, path.as_slice()) {
        (&Method::POST, ["nodes"]) => advert(&mut lock(), json()),
        (&Method::POST, ["nodes", _, "claim"]) => claim(json(), query, state, changed).await,
        (&Method::POST, ["runs", run, "steps", seq, "result"]) => {
            let answered = result(&mut lock(), &format!("{run}/{seq}?{query}"), json());
            changed.send_modify(|version| *version += 1);
            let mut state = lock();
            if state.lose_answers > 0 {
                state.lose_answers -= 1;
                return Err(away());
            }
            answered
        }
        (&Method::PUT, ["runs", run, "steps", seq, "log"]) => {
            put_log(&mut lock(), &format!("{run}/{seq}/{}", field(query, "attempt")), query, &body)
        }
        (&Method::PUT, ["runs", run, "steps", seq, "artifacts", name @ ..]) => {
            let mut state = lock();
            if body.len() > state.artifact_max {
                return problem(413, "too-large", json!({}));
            }
            state.artifacts.insert(format!("{run}/{seq}/{}", name.join("/")), body.to_vec());
            respond(204, &Value::Null)
        }
        _ => problem(404, "not-found", json!({})),
    };
    // What was parked when the daemon went away is not answered either.
    if lock().away { Err(away()) } else { answered }
}

fn advert(state: &mut State, body: Value) -> Answered {
    state.adverts.push((boottime_ms(), body));
    if let Some((status, code)) = state.refuse_adverts {
        return problem(status, code, json!({}));
    }
    let leases: Vec<Value> = state
        .lease
        .iter()
        .map(|(run, nonce)| {
            json!({"run_id": run, "node_id": "n", "nonce": nonce, "not_after": "", "ttl_seconds": state.ttl_seconds})
        })
        .collect();
    respond(200, &json!({"leases": leases, "renew_seconds": state.renew_seconds, "drain": ""}))
}

async fn claim(body: Value, query: &str, state: &Mutex<State>, changed: &watch::Sender<u64>) -> Answered {
    let mut wake = changed.subscribe();
    let until = boottime_ms() + field(query, "wait_seconds").parse::<i64>().unwrap_or(0).min(5) * 1000;
    state.lock().expect("no holder panics").claims.push(body.clone());
    loop {
        {
            let mut state = state.lock().expect("no holder panics");
            if let Some((status, code)) = state.refuse_claims.pop_front() {
                return problem(status, code, json!({}));
            }
            if body["working"].is_null() {
                if let Some(step) = next_step(&mut state) {
                    return respond(200, &step);
                }
            } else {
                let same =
                    |step: &Value| ["run_id", "seq", "attempt"].iter().all(|key| step[key] == body["working"][key]);
                if !state.held.as_ref().is_some_and(same) {
                    return problem(409, "stale-lease", json!({}));
                }
            }
        }
        let left = until - boottime_ms();
        if left <= 0 {
            return respond(204, &Value::Null);
        }
        let _ = tokio::time::timeout(Duration::from_millis(left.unsigned_abs()), wake.changed()).await;
    }
}

fn next_step(state: &mut State) -> Option<Value> {
    if state.held.is_none() {
        state.held = state.steps.pop_front();
    }
    let mut step = state.held.clone()?;
    let run = step["run_id"].as_str().unwrap_or_default().to_owned();
    let nonce = format!("nonce-{run}");
    step["lease"] = json!({"nonce": nonce, "not_after": "", "ttl_seconds": state.ttl_seconds});
    state.lease = Some((run, nonce));
    Some(step)
}

fn result(state: &mut State, at: &str, body: Value) -> Answered {
    let current = state.held.as_ref().is_some_and(|step| {
        at.starts_with(&format!("{}/{}?", step["run_id"].as_str().unwrap_or_default(), step["seq"]))
    });
    let known = state
        .results
        .iter()
        .any(|(earlier, report)| earlier.split('?').next() == at.split('?').next() && report == &body);
    state.results.push((at.to_owned(), body));
    if let Some((status, code)) = state.refuse_results {
        return problem(status, code, json!({}));
    }
    if !current && !known {
        return problem(409, "stale-lease", json!({}));
    }
    if current && !std::mem::take(&mut state.redeliver) {
        state.held = None;
        state.lease = None;
    }
    let claim = if at.ends_with("?claim=true") { next_step(state) } else { None };
    respond(200, &json!({"state": "DONE", "claim": claim}))
}

fn put_log(state: &mut State, key: &str, query: &str, body: &[u8]) -> Answered {
    let log = state.logs.entry(key.to_owned()).or_default();
    let offset: usize = field(query, "offset").parse().unwrap_or(0);
    if offset > log.len() {
        return problem(409, "log-gap", json!({"size": log.len()}));
    }
    let new = body.get(log.len() - offset..).unwrap_or_default();
    log.extend_from_slice(new);
    state.log_puts += 1;
    respond(204, &Value::Null)
}

fn field<'a>(query: &'a str, name: &str) -> &'a str {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

fn respond(status: u16, body: &Value) -> Answered {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let status = StatusCode::from_u16(status).expect("it is a status");
    Ok(Response::builder().status(status).body(Full::new(Bytes::from(text))).expect("it is plain"))
}

fn problem(status: u16, code: &str, more: Value) -> Answered {
    let mut body = json!({"status": status, "code": code, "detail": format!("the test says {code}")});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    respond(status, &body)
}
