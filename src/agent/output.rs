//! A step's output: kept in a file on this host as it comes, sent to the daemon while the step runs, and kept until
//! the result is answered.
//!
//! The command is never held up by a slow or absent daemon, and the agent's memory does not grow with what it writes.
//! Secret values are masked before anything is kept. When the host's disk is full the output ends there; what the agent
//! itself has to say of the step, little, is then kept in memory.
//! A 2xx to a log PUT does not promise that the bytes survive a power cut there (the result's answer does), so what
//! was sent is sent again if the daemon turns out not to have it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, warn};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use super::link::{Link, Pause, is_passing, refusal};
use super::secrets::{Masker, Secrets};
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
    /// How much is in the file.
    kept: u64,
    limit: u64,
    dropped: u64,
    /// Why nothing more can be kept in the file.
    broken: Option<io::Error>,
    /// Notes that the file has no room for: they follow it.
    notes: Vec<u8>,
    secrets: Secrets,
    masker: Masker,
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
    pub fn new(folder: &Path, limit: u64, secrets: &Secrets) -> io::Result<(Self, Sender)> {
        let path = folder.join(format!("output-{:016x}", getrandom::u64().map_err(io::Error::other)?));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // Without a name it goes with the agent, however that ends.
        std::fs::remove_file(&path)?;
        Ok(Self::on(file, limit, secrets))
    }

    fn on(file: File, limit: u64, secrets: &Secrets) -> (Self, Sender) {
        let (extent_sender, extent) = watch::channel(Extent::default());
        let spool = Spool {
            file,
            kept: 0,
            limit,
            dropped: 0,
            broken: None,
            notes: Vec::new(),
            secrets: secrets.clone(),
            masker: secrets.masker(),
        };
        let output = Self(Arc::new(Mutex::new(spool)), extent_sender);
        let sender = Sender { output: output.clone(), extent, sent: 0, refused: false, gap: (0, 0) };
        (output, sender)
    }

    /// Keeps what `from` gives until it ends.
    pub async fn fill(&self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match from.read(&mut chunk).await {
                Ok(0) => return,
                Ok(n) => self.change(|spool| spool.take(&chunk[..n])),
                Err(error) => return warn!("reading a command's output: {error}"),
            }
        }
    }

    /// Adds a line of the agent's own, on a line of its own.
    pub fn note(&self, text: &str) {
        self.change(|spool| spool.note(text));
    }

    /// Says that there will be no more.
    pub fn complete(&self) {
        self.change(|spool| {
            spool.settle();
            if spool.dropped > 0 {
                let why = spool.broken.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
                spool.note(&format!("{} bytes of output were dropped on the node{why}", spool.dropped));
            }
        });
        self.1.send_modify(|extent| extent.complete = true);
    }

    fn change(&self, change: impl FnOnce(&mut Spool)) {
        let mut spool = self.0.lock().expect("no holder panics");
        change(&mut spool);
        let len = spool.kept + spool.notes.len() as u64;
        self.1.send_if_modified(|extent| std::mem::replace(&mut extent.len, len) != len);
    }

    fn read(&self, from: u64, to: u64) -> io::Result<Bytes> {
        let spool = self.0.lock().expect("no holder panics");
        if from >= spool.kept {
            let from = usize::try_from(from - spool.kept).expect("it is small");
            return Ok(Bytes::copy_from_slice(&spool.notes[from..]));
        }
        let to = to.min(from + REQUEST_BYTES).min(spool.kept);
        let mut bytes = vec![0; usize::try_from(to - from).expect("it is small")];
        spool.file.read_exact_at(&mut bytes, from)?;
        Ok(Bytes::from(bytes))
    }
}

impl Spool {
    /// Takes what the command wrote.
    fn take(&mut self, bytes: &[u8]) {
        let masked = self.masker.pass(bytes);
        // Borrowed from `bytes` if there is nothing to mask.
        self.keep(&masked, self.limit);
    }

    /// Takes what the masker still has: nothing can follow it any more.
    fn settle(&mut self) {
        let rest = self.masker.finish();
        self.keep(&rest, self.limit);
    }

    /// Keeps as much as there is room for. A full disk here is no reason to end the step: what cannot be kept is counted
    /// and told. After a failure nothing more is kept, so that what is there is the beginning of the output, without
    /// gaps.
    fn keep(&mut self, bytes: &[u8], limit: u64) {
        let room = usize::try_from(limit.saturating_sub(self.kept)).unwrap_or(usize::MAX);
        let wanted = &bytes[..bytes.len().min(room)];
        let mut kept = 0;
        while kept < wanted.len() && self.broken.is_none() {
            match self.file.write_at(&wanted[kept..], self.kept) {
                Ok(0) => self.broken = Some(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    kept += n;
                    self.kept += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!("output cannot be kept on this host: {error}");
                    self.broken = Some(error);
                }
            }
        }
        self.dropped += (bytes.len() - kept) as u64;
    }

    fn note(&mut self, text: &str) {
        self.settle();
        let mut last = [b'\n'];
        match self.notes.last() {
            Some(byte) => last = [*byte],
            None if self.kept > 0 => drop(self.file.read_exact_at(&mut last, self.kept - 1)),
            None => {}
        }
        let start = if last == [b'\n'] { "" } else { "\n" };
        let line = self.secrets.mask(&format!("{start}[mediator: {text}]\n")).into_bytes();
        let (kept, dropped) = (self.kept, self.dropped);
        self.keep(&line, u64::MAX);
        self.dropped = dropped;
        let written = usize::try_from(self.kept - kept).expect("it is a line");
        self.notes.extend_from_slice(&line[written..]);
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
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            bytes.extend(output.read(bytes.len() as u64, len).expect("it is there"));
        }
        String::from_utf8(bytes).expect("it is text")
    }

    fn write(output: &Output, text: &str) {
        output.change(|spool| spool.take(text.as_bytes()));
    }

    #[test]
    fn a_note_stands_on_a_line_of_its_own() {
        let folder = tempfile::tempdir().expect("there is room");
        let (output, _sender) = Output::new(folder.path(), 100, &Secrets::default()).expect("there is room");
        write(&output, "no newline");
        output.note("a");
        output.note("b");
        assert_eq!(kept(&output), "no newline\n[mediator: a]\n[mediator: b]\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0, "a file was left");
    }

    #[test]
    fn a_flood_is_cut_and_the_cut_is_told() {
        let folder = tempfile::tempdir().expect("there is room");
        let (output, _sender) = Output::new(folder.path(), 4, &Secrets::default()).expect("there is room");
        for text in ["abc", "def", "ghi"] {
            write(&output, text);
        }
        output.complete();
        assert_eq!(kept(&output), "abcd\n[mediator: 5 bytes of output were dropped on the node]\n");
    }

    #[test]
    fn what_a_full_disk_cannot_keep_is_told_all_the_same() {
        let full = File::options().read(true).write(true).open("/dev/full").expect("this is Linux");
        let (output, _sender) = Output::on(full, 100, &Secrets::default());
        write(&output, "abc");
        output.note("artifact a: not found");
        output.complete();
        let told = kept(&output);
        assert!(told.starts_with("[mediator: artifact a: not found]\n[mediator: 3 bytes of output"), "{told}");
        assert!(told.contains("No space left on device"), "{told}");
    }

    #[test]
    fn a_secret_that_comes_in_two_pieces_is_masked() {
        let folder = tempfile::tempdir().expect("there is room");
        let secrets = Secrets::read(&["P".to_owned()], &|_| Some("hunter22".to_owned())).expect("long enough");
        let (output, _sender) = Output::new(folder.path(), 100, &secrets).expect("there is room");
        write(&output, "it is hunt");
        write(&output, "er22 or hunt");
        output.note("artifact hunter22: not found");
        output.complete();
        assert_eq!(kept(&output), "it is *** or hunt\n[mediator: artifact ***: not found]\n");
    }
}
