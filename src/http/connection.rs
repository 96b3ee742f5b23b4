//! One connection: heads, bodies and readers that are slow have limits, and an answer that was given before the body
//! was read still reaches the client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::door::Place;
use super::framing::Framing;
use super::reply::Body;

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long the whole head of a request may take, from its first byte, or for the first of a connection from its opening.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection may be idle between two requests.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The longest head, in bytes and in lines.
const HEAD_BYTES: usize = 16 << 10;
const HEAD_LINES: usize = 64;
/// How long a client may leave what it is sent unread.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// How long, and how much, is read and thrown away of a body that was answered unread.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;

/// Does the daemon's end of a handshake; `None` if nothing came of it in time.
pub async fn shake_hands(tls: TlsAcceptor, stream: TcpStream, place: &Place) -> Option<TlsStream<TcpStream>> {
    let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, tls.accept(stream));
    let outcome = tokio::select! {
        outcome = handshake => outcome,
        () = place.shed() => return None,
    };
    match outcome {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => log::debug!("a handshake failed cause={error}"),
        Err(_) => log::debug!("a handshake took too long"),
    }
    None
}

/// Serves one connection until it ends, has to give its place to another, or the daemon stops and its request is
/// answered.
pub async fn serve<S, F, A>(stream: S, place: Place, mut stop: watch::Receiver<bool>, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<Body>>,
{
    let io = TokioIo::new(Patient::new(stream, place.share()));
    let service = service_fn(|request| {
        let busy = place.answer();
        let answer = answer(request);
        // Boxed, because the connection is moved apart once it has ended.
        Box::pin(async move { Ok::<_, std::convert::Infallible>(answer.await.map(|body| body.keeping(busy))) })
    });
    let mut connection = http1::Builder::new()
        // Its one limit would be the same for a head and for the pause before it: see [`Patient`].
        .header_read_timeout(None)
        .max_header_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .max_buf_size(64 << 10)
        .serve_connection(io, service);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
                if let Err(error) = ended {
                    log::debug!("a connection ended cause={error}");
                    return;
                }
                break;
            }
            () = place.shed() => {
                log::debug!("an idle connection gives its place to another");
                return;
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    linger(connection.into_parts().io.into_inner().stream).await;
}

/// Closes the writing side, then reads what the client still sends: closing at once would make the kernel reset the
/// connection, and the answer could be lost on its way.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut scrap = [0; 8192];
    let mut left = LINGER_BYTES;
    let drain = async {
        while left > 0 {
            match stream.read(&mut scrap).await {
                Ok(0) | Err(_) => break,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    // Either way the connection is closed now.
    let _ = tokio::time::timeout(LINGER_LIMIT, drain).await;
}

/// A stream whose peer may not leave a write waiting for longer than [`WRITE_LIMIT`], nor a head for longer than
/// [`HEAD_LIMIT`], nor be unclear about where its requests end.
struct Patient<S> {
    stream: S,
    place: Place,
    stuck: Option<Pin<Box<Sleep>>>,
    /// When a head must be there.
    head: Pin<Box<Sleep>>,
    /// Since when the connection is idle, as it was last seen.
    idle_since: Option<Instant>,
    /// Since when the head is on its way: from the opening of the connection for the first, else from its first byte.
    head_since: Option<Instant>,
    framing: Framing,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Patient<S> {
    fn new(stream: S, place: Place) -> Self {
        let now = Instant::now();
        let head = Box::pin(tokio::time::sleep_until(now + HEAD_LIMIT));
        let idle_since = place.idle_since();
        Self { stream, place, stuck: None, head, idle_since, head_since: Some(now), framing: Framing::default() }
    }

    /// Notes whether the connection is idle, and when the head that it waits for begins to come.
    fn note(&mut self, is_more: bool) {
        let idle_since = self.place.idle_since();
        if idle_since != self.idle_since {
            self.idle_since = idle_since;
            // It may have come in part with the end of the request before.
            self.head_since = idle_since.filter(|_| self.framing.is_in_head());
        }
        if is_more && idle_since.is_some() && self.head_since.is_none() {
            self.head_since = Some(Instant::now());
        }
    }

    /// Says whether the head that is waited for is overdue, and has itself asked again when it would be.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(idle_since) = self.idle_since else { return false };
        let until = self.head_since.map_or(idle_since + IDLE_LIMIT, |since| since + HEAD_LIMIT);
        if self.head.deadline() != until {
            self.head.as_mut().reset(until);
        }
        self.head.as_mut().poll(cx).is_ready()
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stuck = None;
            return poll;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_LIMIT)));
        match stuck.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.framing.is_cut() {
            // The end of what is read.
            return Poll::Ready(Ok(()));
        }
        let known = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        let is_more = buf.filled().len() > known;
        let good = self.framing.check(&mut buf.filled_mut()[known..]);
        buf.set_filled(known + good);
        self.note(is_more);
        if poll.is_pending() && self.is_overdue(cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")));
        }
        poll
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
