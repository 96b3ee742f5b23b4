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
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::framing::Framing;
use super::reply::Body;

/// How long the whole head of a request may take, and how long a connection may be idle between two.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// The longest head, in bytes and in lines.
const HEAD_BYTES: usize = 16 << 10;
const HEAD_LINES: usize = 64;
/// How long a client may leave what it is sent unread.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// How long, and how much, is read and thrown away of a body that was answered unread.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;

/// Serves one connection until it ends, or the daemon stops and its request is answered.
pub async fn serve<F, A>(stream: TcpStream, mut stop: watch::Receiver<bool>, answer: F)
where
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<Body>>,
{
    // Answers are small and somebody waits for each: none is held back to be sent with the next.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Patient { stream, stuck: None, framing: Framing::default() });
    let service = service_fn(|request| {
        let answer = answer(request);
        // Boxed, because the connection is moved apart once it has ended.
        Box::pin(async move { Ok::<_, std::convert::Infallible>(answer.await) })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
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
async fn linger(mut stream: TcpStream) {
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

/// A stream whose peer may not leave a write waiting for longer than [`WRITE_LIMIT`], nor be unclear about where its
/// requests end.
struct Patient {
    stream: TcpStream,
    stuck: Option<Pin<Box<Sleep>>>,
    framing: Framing,
}

impl Patient {
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

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let known = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.framing.check(&mut buf.filled_mut()[known..]);
        poll
    }
}

impl AsyncWrite for Patient {
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
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
