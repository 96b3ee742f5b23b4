//! The one client of all measurements: keep-alive connections of hyper, each with one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Whom to call, and as whom.
#[derive(Clone)]
pub struct Peer {
    pub address: SocketAddr,
    pub token: Option<HeaderValue>,
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// One connection.
pub struct Conn {
    sender: SendRequest<Full<Bytes>>,
    peer: Peer,
}

impl Conn {
    pub async fn open(peer: &Peer) -> Self {
        let stream = TcpStream::connect(peer.address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("a connection");
        tokio::spawn(async move {
            // It ends with the server, or with this program.
            let _ = connection.await;
        });
        Self { sender, peer: peer.clone() }
    }

    pub async fn call(&mut self, method: Method, path: &str, body: Bytes, key: Option<String>) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        if let Some(token) = &self.peer.token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(body)).expect("a request");
        self.sender.ready().await.expect("the server is there");
        let response = self.sender.send_request(request).await.expect("an answer");
        let status = response.status().as_u16();
        Answer { status, body: response.into_body().collect().await.expect("a body").to_bytes() }
    }

    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.call(Method::POST, path, body.into(), None).await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.call(Method::GET, path, Bytes::new(), None).await
    }
}

/// What a load showed.
pub struct Load {
    pub per_second: f64,
    /// All calls, fastest first.
    pub latencies: Vec<Duration>,
    /// How many calls each client got through.
    pub counts: Vec<usize>,
}

impl Load {
    pub fn median(&self) -> Duration {
        self.latencies[self.latencies.len() / 2]
    }
}

/// What one call of a load sends, and what it must be answered with.
#[derive(Clone)]
pub struct Shot {
    pub path: &'static str,
    pub body: Bytes,
    pub status: u16,
    pub with_key: bool,
}

impl Shot {
    /// What the ceiling is asked for: one small row.
    pub fn bare() -> Self {
        Self { path: "/", body: "x".repeat(64).into(), status: 200, with_key: false }
    }
}

/// Lets `clients` call one after the other for `time`, after a short run-up that does not count.
pub async fn load(peer: &Peer, clients: usize, time: Duration, shot: &Shot) -> Load {
    let mut own = Vec::new();
    for _ in 0..clients {
        own.push(Conn::open(peer).await);
    }
    let begin = Instant::now() + time.mul_f64(0.15);
    let end = begin + time;
    let keys = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let started: Vec<_> = own
        .into_iter()
        .map(|mut conn| {
            let (shot, keys) = (shot.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let sent = Instant::now();
                    if sent >= end {
                        return latencies;
                    }
                    let key = shot
                        .with_key
                        .then(|| format!("bench-{:016x}", keys.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
                    conn.call(Method::POST, shot.path, shot.body.clone(), key).await.expect(shot.status);
                    let answered = Instant::now();
                    if sent >= begin && answered <= end {
                        latencies.push(answered - sent);
                    }
                }
            })
        })
        .collect();
    let (mut latencies, mut counts) = (Vec::new(), Vec::new());
    for client in started {
        let own = client.await.expect("no client panics");
        counts.push(own.len());
        latencies.extend(own);
    }
    latencies.sort_unstable();
    Load { per_second: latencies.len() as f64 / time.as_secs_f64(), latencies, counts }
}

/// Sends every body once, through 16 connections.
pub async fn send_all(peer: &Peer, path: &'static str, bodies: Vec<Bytes>, status: u16) {
    let bodies = Arc::new(std::sync::Mutex::new(bodies.into_iter()));
    let mut senders = Vec::new();
    for _ in 0..16 {
        let (mut conn, bodies) = (Conn::open(peer).await, Arc::clone(&bodies));
        senders.push(tokio::spawn(async move {
            loop {
                let next = bodies.lock().expect("no holder panics").next();
                let Some(body) = next else { return };
                conn.post(path, body).await.expect(status);
            }
        }));
    }
    for sender in senders {
        sender.await.expect("no sender panics");
    }
}
