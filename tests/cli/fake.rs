//! A daemon that answers as the test tells it to, and remembers what it was asked.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `GET /v1/runs?limit=5`.
    pub line: String,
    /// The `authorization` header.
    pub token: String,
    /// The `idempotency-key` header.
    pub key: Option<String>,
    /// The `last-event-id` header.
    pub last_event_id: Option<String>,
    /// The body as JSON; null if it is none.
    pub body: Value,
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    after: Duration,
}

impl Reply {
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body: body.to_string().into_bytes(), after: Duration::ZERO }
    }

    pub fn bytes(body: &[u8]) -> Self {
        Self { status: 200, headers: Vec::new(), body: body.to_vec(), after: Duration::ZERO }
    }

    /// No answer: the connection is closed once the request was read.
    pub fn nothing() -> Self {
        Self { status: 0, headers: Vec::new(), body: Vec::new(), after: Duration::ZERO }
    }

    /// A problem document.
    pub fn problem(status: u16, code: &str, detail: &str) -> Self {
        Self::json(status, json!({"status": status, "code": code, "detail": detail, "path": null}))
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Answers this much later, as a long poll does.
    pub fn after_ms(mut self, ms: u64) -> Self {
        self.after = Duration::from_millis(ms);
        self
    }
}

type Script = dyn Fn(&Asked) -> Reply + Send + Sync;

/// Runs until it is dropped; then all its connections are closed.
pub struct Fake {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub fn start(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_on("127.0.0.1:0".parse().expect("an address"), script)
    }

    /// Starts at an address that an earlier one had.
    pub fn start_on(addr: SocketAddr, script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(addr).expect("binds");
        listener.set_nonblocking(true).expect("non-blocking");
        let addr = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let script: Arc<Script> = Arc::new(script);
        let log = Arc::clone(&asked);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let serving = serve(tokio::net::TcpListener::from_std(listener).expect("a listener"), script, log);
                tokio::select! { () = serving => {}, _ = stopped => {} }
            });
        });
        Self { addr, asked, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns what was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no holder panics").clone()
    }

    /// Returns the body of the first request whose line starts so.
    pub fn body_of(&self, line: &str) -> Value {
        let asked = self.asked();
        let found = asked.iter().find(|asked| asked.line.starts_with(line));
        found.unwrap_or_else(|| panic!("no '{line}' among {asked:#?}")).body.clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, script: Arc<Script>, log: Arc<Mutex<Vec<Asked>>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (script, log) = (Arc::clone(&script), Arc::clone(&log));
        let service = service_fn(move |request| answer(request, Arc::clone(&script), Arc::clone(&log)));
        tokio::spawn(async move {
            // A client that hangs up is what some tests are about.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    script: Arc<Script>,
    log: Arc<Mutex<Vec<Asked>>>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let header = |name: &str| Some(head.headers.get(name)?.to_str().expect("text").to_owned());
    let asked = Asked {
        line: format!("{} {}", head.method, head.uri),
        token: header("authorization").unwrap_or_default(),
        key: header("idempotency-key"),
        last_event_id: header("last-event-id"),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    log.lock().expect("no holder panics").push(asked.clone());
    let reply = script(&asked);
    tokio::time::sleep(reply.after).await;
    if reply.status == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(Bytes::from(reply.body))).expect("a response"))
}

/// A run as the daemon tells it, with `changes` on top.
pub fn run(state: &str, changes: Value) -> Value {
    let mut run = json!({
        "run_id": "r-1", "name": "smoke", "state": state, "principal": "operator", "work": null, "priority": 0,
        "created_at": "2026-01-01T00:00:00.000Z", "started_at": null, "ended_at": null, "ends_by": null,
        "requires": [{"as": "dut", "capability": "board", "attrs": {"model": "rpi4"}, "count": 1}],
        "assigned": [], "reject": null, "verdict": null, "queue": null,
        "steps": [{"seq": 1, "id": "exec", "kind": "run", "uses": "dut", "state": "PENDING", "node_id": null,
                   "attempt": 1, "needs": [], "started_at": null, "ended_at": null, "result": null}],
    });
    if state != "QUEUED" {
        run["started_at"] = json!("2026-01-01T00:00:01.000Z");
        run["assigned"] = json!([{"as": "dut", "nodes": [{"node_id": "board-1", "label": "", "attrs": {}}]}]);
    }
    for (name, value) in changes.as_object().expect("an object") {
        run[name] = value.clone();
    }
    run
}
