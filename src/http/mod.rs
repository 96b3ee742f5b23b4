//! The HTTP side: accepts connections, checks requests, and turns what the store says into answers.
//!
//! `routes` is the table of everything that can be called; `call` is one request on its way through the checks;
//! `problem` the one shape of an error; `runs`, `steps`, `nodes`, `asks` are the handlers: each decodes, calls one
//! function of the store, and encodes. `connection` bounds what a slow or hostile peer can take.

mod asks;
mod call;
mod checks;
mod connection;
mod door;
mod framing;
mod kept;
mod nodes;
mod outbox;
mod problem;
mod reply;
mod requests;
mod routes;
mod runs;
mod steps;

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::store::Store;
use call::Call;
use door::Door;
use problem::Problem;
use reply::Reply;

/// How long those who are being answered have when the daemon stops.
const STOP_LIMIT: Duration = Duration::from_secs(4);

/// What every handler has.
#[derive(Clone)]
pub struct App {
    store: Store,
    stop: watch::Receiver<bool>,
    /// Held by the one event stream that reads.
    streaming: Arc<Semaphore>,
    /// Bytes in memory of JSON bodies that are not whole yet.
    buffered: Arc<AtomicUsize>,
}

impl App {
    /// Waits until `waiter` is told, `wait` is over, or the daemon stops; says whether to look again.
    async fn parked(&self, waiter: crate::store::hub::Waiter, until: tokio::time::Instant) -> bool {
        self.unless_over(waiter.told(), until).await.is_some() && !*self.stop.borrow()
    }

    /// Waits for `event`, but not longer than `until`, nor for a daemon that stops.
    async fn unless_over<T>(&self, event: impl Future<Output = T>, until: tokio::time::Instant) -> Option<T> {
        let mut stop = self.stop.clone();
        tokio::select! {
            outcome = event => Some(outcome),
            () = tokio::time::sleep_until(until) => None,
            _ = stop.wait_for(|stop| *stop) => None,
        }
    }
}

/// Serves `listener` until `stop` turns true; then answers what was taken, and returns. With `tls` each connection begins
/// with its handshake.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, store: Store, stop: watch::Receiver<bool>) {
    let app = App { store, stop: stop.clone(), streaming: Arc::new(Semaphore::new(1)), buffered: Arc::default() };
    // Every connection holds a sender: when all are gone, all connections are.
    let (open, mut closed) = mpsc::channel::<()>(1);
    let mut stopping = stop.clone();
    let door = Door::new();
    let mut is_failing = false;
    loop {
        let accept = async {
            door.opens().await;
            listener.accept().await
        };
        let stream = tokio::select! {
            accepted = accept => accepted,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        match stream {
            Ok((stream, peer)) => {
                is_failing = false;
                let (app, place, stop, open) = (app.clone(), door.enter(), stop.clone(), open.clone());
                let tls = tls.clone();
                tokio::spawn(async move {
                    // Answers are small and somebody waits for each: none is held back to be sent with the next.
                    let _ = stream.set_nodelay(true);
                    let answer = |request| answer(app.clone(), peer, request);
                    match tls {
                        None => connection::serve(stream, place, stop, answer).await,
                        Some(tls) => {
                            if let Some(stream) = connection::shake_hands(tls, stream, &place).await {
                                connection::serve(stream, place, stop, answer).await;
                            }
                        }
                    }
                    // Whoever waits for the connections to end may open the folder next: the store goes first.
                    drop(app);
                    drop(open);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: the others are served meanwhile, and some will end.
                if !is_failing {
                    log::warn!("cannot accept a connection cause={error}");
                }
                is_failing = true;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((listener, open));
    if tokio::time::timeout(STOP_LIMIT, closed.recv()).await.is_err() {
        log::warn!("some connections did not end in time");
    }
}

/// Answers one request, whatever happens.
async fn answer(app: App, peer: SocketAddr, request: Request<Incoming>) -> Reply {
    let request_id = crate::random::text(12);
    let method = request.method().clone();
    let target = request.uri().path().to_owned();
    let mut handling = Box::pin(handle(app, request, request_id.clone()));
    // A panic in one request ends that one.
    let outcome = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(cx))) {
        Ok(Poll::Ready(outcome)) => Poll::Ready(outcome),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(Err((Problem::new("internal", "a mistake of ours: the daemon's log tells more"), true))),
    })
    .await;
    drop(handling);
    let mut reply = match outcome {
        Ok(reply) => reply,
        Err((problem, unread)) => {
            let mut reply = problem.into_reply(&request_id);
            if unread {
                // What is left of the body is not worth reading: the connection ends with this answer.
                reply.headers_mut().insert(CONNECTION, hyper::header::HeaderValue::from_static("close"));
            }
            reply
        }
    };
    reply::finish(&mut reply);
    log::debug!("request={request_id} peer={peer} method={method} path={target:?} status={}", reply.status().as_u16());
    reply
}

/// Runs the checks in their order, then the handler. With a problem comes whether the body may be unread.
async fn handle(app: App, request: Request<Incoming>, request_id: String) -> Result<Reply, (Problem, bool)> {
    let (head, body) = request.into_parts();
    let has_body = !hyper::body::Body::is_end_stream(&body);
    let early = |problem| (problem, has_body);
    checks::check_coding(&head.headers).map_err(early)?;
    checks::check_host(&head.uri, &head.headers, &app.store.settings().hosts).map_err(early)?;
    checks::check_origin(&head.headers, &app.store.settings().hosts).map_err(early)?;
    let open = routes::is_open(head.uri.path());
    let caller = if open { routes::nobody() } else { checks::check_token(&app, &head.headers).map_err(early)? };
    let (route, params) = routes::find(&head.method, head.uri.path()).map_err(early)?;
    if route.operators_only && !caller.operator {
        return Err(early(Problem::new("forbidden", "only an operator may do this")));
    }
    match route.body {
        routes::BodyKind::None if !has_body => {}
        routes::BodyKind::None | routes::BodyKind::Json => {
            checks::check_json(&head.headers, &body, app.store.settings().max_body_bytes).map_err(early)?;
        }
        routes::BodyKind::Raw => checks::check_encoding(&head.headers).map_err(early)?,
    }
    let required = route.once && app.store.settings().idempotency_required;
    let key = checks::read_key(&head.headers, required).map_err(early)?;
    let query = call::Query::read(&head.uri).map_err(early)?;
    let target = (head.method, head.uri.path().to_owned());
    let (body, is_read) = call::Body::new(body);
    let call = Call { app, caller, params, query, headers: head.headers, body, target, key, request_id };
    (route.handler)(call).await.map_err(|problem| (problem, !is_read.load(std::sync::atomic::Ordering::Relaxed)))
}

/// Raises the limit on open descriptors as far as it goes: each connection needs one.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        log::warn!("cannot raise the limit on open files cause={error}");
    }
}

/// Binds `address`.
///
/// # Errors
/// The system's.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}
