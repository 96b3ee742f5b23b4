//! The ceiling: the daemon's own design with nothing in it. hyper on one thread, one writer on another, groups of
//! what waits, a savepoint each, `synchronous=FULL`, the answer after the commit; one small row a call, no JSON, no
//! checks, no domain.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::bare;

type Call = (Bytes, oneshot::Sender<()>);

#[derive(Default)]
struct Waiting {
    /// The calls, and from how many on the writer wants to hear of one.
    calls: Mutex<(VecDeque<Call>, usize)>,
    arrived: Condvar,
}

/// Serves until it is killed.
pub fn run(folder: &Path) {
    let synchronous = std::env::var("CEILING_SYNCHRONOUS").unwrap_or_else(|_| "full".to_owned());
    let mut conn = bare::open(folder, &synchronous);
    let pages = bare::count_pages(&mut conn);
    let waiting = Arc::new(Waiting::default());
    let own = Arc::clone(&waiting);
    std::thread::spawn(move || write(&conn, &pages, &own));
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    rt.block_on(serve(waiting));
}

async fn serve(waiting: Arc<Waiting>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("listening on http://{}", listener.local_addr().expect("an address"));
    std::io::stdout().flush().expect("standard output");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let waiting = Arc::clone(&waiting);
        let service = service_fn(move |request: Request<Incoming>| answer(Arc::clone(&waiting), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(waiting: Arc<Waiting>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let (reply, committed) = oneshot::channel();
    {
        let mut state = waiting.calls.lock().expect("no holder panics");
        state.0.push_back((body, reply));
        if state.0.len() >= state.1 {
            waiting.arrived.notify_one();
        }
    }
    committed.await.expect("the writer answers");
    Ok(Response::new(Full::new(Bytes::from_static(b"ok"))))
}

fn write(conn: &rusqlite::Connection, pages: &AtomicI32, waiting: &Waiting) {
    let mut pace = Pace::default();
    loop {
        let group = {
            let mut calls = waiting.calls.lock().expect("no holder panics");
            while calls.0.is_empty() {
                calls = waiting.arrived.wait(calls).expect("no holder panics");
            }
            let (wanted, patience) = pace.patience();
            if calls.0.len() < wanted {
                calls.1 = wanted;
                let is_short = |calls: &mut (VecDeque<Call>, usize)| calls.0.len() < calls.1;
                calls = waiting.arrived.wait_timeout_while(calls, patience, is_short).expect("no holder panics").0;
                calls.1 = 0;
            }
            std::mem::take(&mut calls.0)
        };
        bare::run(conn, "BEGIN IMMEDIATE");
        for (body, _) in &group {
            bare::run(conn, "SAVEPOINT part");
            bare::insert(conn, body);
            bare::run(conn, "RELEASE part");
        }
        let began = Instant::now();
        bare::run(conn, "COMMIT");
        pace.committed(group.len(), began.elapsed());
        for (_, reply) in group {
            let _ = reply.send(());
        }
        bare::checkpoint(conn, pages);
    }
}

/// How long a group waits for more: what the daemon does too, see `store/pace.rs`.
#[derive(Default)]
struct Pace {
    sizes: [usize; 2],
    commit: Duration,
}

impl Pace {
    fn patience(&self) -> (usize, Duration) {
        let patience = self.commit / 10;
        if patience < Duration::from_micros(50) { (1, patience) } else { (self.sizes[0].max(self.sizes[1]), patience) }
    }

    fn committed(&mut self, size: usize, took: Duration) {
        self.sizes = [size, self.sizes[0]];
        self.commit = took;
    }
}
