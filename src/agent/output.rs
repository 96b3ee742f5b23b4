//! A step's output: kept in a file on this host as it comes, sent to the daemon while the step runs, and kept until
//! the result is answered.
//!
//! The command is never held up by a slow or absent daemon, and the agent's memory does not grow with what it writes.
//! A 2xx to a log PUT does not promise that the bytes survive a power cut there (the result's answer does), so what
//! was sent is sent again if the daemon turns out not to have it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, warn};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use super::link::{Link, Pause, is_passing, refusal};
use super::wire::Claim;
use crate::client::{CALL_LIMIT, Error};

/// How long output may wait for more to go with it.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// How much output is sent without waiting for more, in bytes.
const BATCH_BYTES: u64 = 64 * 1024;

/// How much is sent in one request, in bytes.
const REQUEST_BYTES: u64 = 256 * 1024;

/// How often the same gap is filled before the log counts as closed.
const SAME_GAPS: u32 = 5;

/// The output of one attempt. Clones are the same output.
#[derive(Clone, Debug)]
pub struct Output(Arc<Mutex<Spool>>, watch::Sender<Extent>);

#[derive(Debug)]
struct Spool {
    file: File,
    limit: u64,
    dropped: u64,
}

/// How much there is, and whether there will be more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Extent {
    len: u64,
    complete: bool,
}

/// Sends one attempt's output.
#[derive(Debug)]
pub struct Sender {
    output: Output,
    extent: watch::Receiver<Extent>,
    sent: u64,
    /// The daemon takes no more of this log, whatever happens.
    refused: bool,
    /// What the daemon last said it has, and how often in a row: a gap that stays where it is cannot be filled.
    gap: (u64, u32),
}

impl Output {
    /// Makes an output that keeps up to `limit` bytes in a file without a name in `folder`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path, limit: u64) -> io::Result<(Self, Sender)> {
        let path = folder.join(format!("output-{:016x}", getrandom::u64().map_err(io::Error::other)?));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        // Without a name it goes with the agent, however that ends.
        std::fs::remove_file(&path)?;
        let (extent_sender, extent) = watch::channel(Extent::default());
        let output = Self(Arc::new(Mutex::new(Spool { file, limit, dropped: 0 })), extent_sender);
        let sender = Sender { output: output.clone(), extent, sent: 0, refused: false, gap: (0, 0) };
        Ok((output, sender))
    }

    /// Keeps what `from` gives until it ends.
    pub async fn fill(&self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match from.read(&mut chunk).await {
                Ok(0) => return,
                Ok(n) => self.append(&chunk[..n], false),
                Err(error) => return warn!("reading a command's output: {error}"),
            }
        }
    }

    /// Adds a line of the agent's own, on a line of its own.
    pub fn note(&self, text: &str) {
        let len = self.1.borrow().len;
        let mut last = [b'\n'];
        if len > 0 {
            let spool = self.0.lock().expect("no holder panics");
            let _ = spool.file.read_exact_at(&mut last, len - 1);
        }
        let start = if last == [b'\n'] { "" } else { "\n" };
        self.append(format!("{start}[mediator: {text}]\n").as_bytes(), true);
    }

    /// Says that there will be no more.
    pub fn complete(&self) {
        let dropped = self.0.lock().expect("no holder panics").dropped;
        if dropped > 0 {
            self.note(&format!("{dropped} bytes of output were dropped on the node"));
        }
        self.1.send_modify(|extent| extent.complete = true);
    }

    fn append(&self, bytes: &[u8], whatever_the_limit: bool) {
        let mut spool = self.0.lock().expect("no holder panics");
        let len = self.1.borrow().len;
        let room = usize::try_from(spool.limit.saturating_sub(len)).unwrap_or(usize::MAX);
        let kept = if whatever_the_limit { bytes.len() } else { bytes.len().min(room) };
        // A full disk here is no reason to end the step: what cannot be kept is counted and told.
        let kept = match spool.file.write_all_at(&bytes[..kept], len) {
            Ok(()) => kept,
            Err(_) => 0,
        };
        spool.dropped += (bytes.len() - kept) as u64;
        self.1.send_if_modified(|extent| {
            extent.len += kept as u64;
            kept > 0
        });
    }

    fn read(&self, from: u64, to: u64) -> io::Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(to.min(from + REQUEST_BYTES) - from).expect("it is small")];
        self.0.lock().expect("no holder panics").file.read_exact_at(&mut bytes, from)?;
        Ok(Bytes::from(bytes))
    }
}

impl Sender {
    /// Sends until all is sent and there will be no more, or the daemon takes no more. While the daemon is away it
    /// goes on trying.
    pub async fn send(&mut self, link: &Link, claim: &Claim) {
        let mut pause = Pause::default();
        while !self.refused {
            let Extent { len, complete } = *self.extent.borrow_and_update();
            if self.sent == len && complete {
                return;
            }
            if len - self.sent < BATCH_BYTES && !complete {
                let more = self.extent.wait_for(|now| now.complete || now.len - self.sent >= BATCH_BYTES);
                let waited = tokio::time::timeout(BATCH_WAIT, more).await.is_err();
                if waited && self.sent == self.extent.borrow().len {
                    // Nothing there: wait for the first byte, then once more for those that come with it.
                    let _ = self.extent.wait_for(|now| now.complete || now.len > self.sent).await;
                    continue;
                }
            }
            let len = self.extent.borrow().len;
            let bytes = match self.output.read(self.sent, len) {
                Ok(bytes) => bytes,
                Err(error) => return warn!("reading kept output run={} step={}: {error}", claim.run_id, claim.id),
            };
            let path = format!("{}?{}&offset={}", claim.path("log"), claim.fence(), self.sent);
            let size = bytes.len() as u64;
            let content = Some("application/octet-stream");
            match link.client().call(Method::PUT, &path, content, bytes, CALL_LIMIT).await {
                Ok(_) => {
                    self.sent += size;
                    pause.reset();
                }
                Err(error) if refusal(&error) == Some((StatusCode::CONFLICT, "log-gap")) => {
                    self.rewind(&error);
                    pause.wait().await;
                }
                Err(error) if is_passing(&error) => {
                    debug!("sending output run={} step={}: {error}", claim.run_id, claim.id);
                    pause.wait().await;
                }
                Err(error) => {
                    debug!("the log is closed run={} step={}: {error}", claim.run_id, claim.id);
                    self.refused = true;
                }
            }
        }
    }

    /// Makes sure that the daemon still has all that it took, after it was away: sends the last byte again, which a
    /// daemon that has less answers with what it has. To be called when all was sent.
    pub async fn verify(&mut self, link: &Link, claim: &Claim) {
        self.sent = self.sent.saturating_sub(1);
        self.send(link, claim).await;
    }

    /// Goes back to what the daemon says it has.
    fn rewind(&mut self, error: &Error) {
        let size = match error {
            Error::Refused(problem) => problem.body["size"].as_u64(),
            _ => None,
        };
        // A gap that is none: starting over is right whatever it means, bytes it has are ignored.
        let size = size.filter(|size| *size < self.sent).unwrap_or(0);
        self.gap = if self.gap.0 == size { (size, self.gap.1 + 1) } else { (size, 1) };
        self.refused = self.gap.1 > SAME_GAPS;
        self.sent = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(output: &Output) -> String {
        let len = output.1.borrow().len;
        String::from_utf8(output.read(0, len).expect("it is there").to_vec()).expect("it is text")
    }

    #[test]
    fn a_note_stands_on_a_line_of_its_own() {
        let folder = tempfile::tempdir().expect("there is room");
        let (output, _sender) = Output::new(folder.path(), 100).expect("there is room");
        output.append(b"no newline", false);
        output.note("a");
        output.note("b");
        assert_eq!(kept(&output), "no newline\n[mediator: a]\n[mediator: b]\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0, "a file was left");
    }

    #[test]
    fn a_flood_is_cut_and_the_cut_is_told() {
        let folder = tempfile::tempdir().expect("there is room");
        let (output, _sender) = Output::new(folder.path(), 4).expect("there is room");
        output.append(b"abc", false);
        output.append(b"def", false);
        output.append(b"ghi", false);
        output.complete();
        assert_eq!(kept(&output), "abcd\n[mediator: 5 bytes of output were dropped on the node]\n");
    }
}
