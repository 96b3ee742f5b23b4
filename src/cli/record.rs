//! `mediator record`: what is kept of a run, as a tar archive, and whether one is whole.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{Context, Exit, Stop, out};
use crate::client::{Opened, encode};

/// How long a download may stand still.
pub const STALL: Duration = Duration::from_secs(60);
/// The header with the SHA-256 of the manifest, as the daemon's rows keep it.
const SEALED: &str = "mediator-manifest-sha256";
/// The file that lists the others.
const MANIFEST: &str = "manifest.json";
/// More than the manifest of any record: 500 steps with all their artifacts.
const MANIFEST_BYTES: u64 = 64 * 1024 * 1024;

/// Flags of `mediator record`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run; with --verify also the file of a record
    #[arg(value_name = "RUN")]
    target: String,
    /// Write the archive to this file (default: standard output)
    #[arg(long, short, value_name = "FILE", conflicts_with = "verify")]
    output: Option<PathBuf>,
    /// Check every file against the SHA-256 in the record's manifest, and of a run's record the manifest against the
    /// daemon's rows; write nothing
    #[arg(long)]
    verify: bool,
}

impl Args {
    /// Says whether no daemon is needed.
    pub fn is_of_file(&self) -> bool {
        self.verify && Path::new(&self.target).is_file()
    }
}

/// Fetches a record, or verifies one without keeping it.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    if !args.verify && args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Stop::new(Exit::Usage, "a terminal cannot show an archive: give --output FILE, or redirect"));
    }
    let mut source = context.client.open(&format!("/v1/runs/{}/record", encode(&args.target)), None).await?;
    let sealed = source.header(SEALED).map(str::to_owned);
    let name = format!("the record of run {}", args.target);
    if args.verify {
        let checked = check_on_the_way(&mut source, sealed, |_| Ok(())).await?;
        return report(&name, checked);
    }
    // What is passed on is looked at on its way: the daemon sends what its disk has.
    let checked = match &args.output {
        None => {
            let mut out = std::io::stdout().lock();
            let checked = check_on_the_way(&mut source, sealed, |bytes| Ok(out.write_all(bytes)?)).await?;
            out.flush()?;
            checked
        }
        Some(path) => {
            let mut file = Partial::create(path)?;
            let checked = check_on_the_way(&mut source, sealed, |bytes| file.write(bytes)).await?;
            file.finish()?;
            checked
        }
    };
    let Err(wrong) = checked else { return Ok(Exit::Done) };
    for what in wrong {
        out::note(&format!("{name}: {what}"));
    }
    Ok(Exit::Failed)
}

/// Verifies the file of a record.
pub fn verify_file(args: &Args) -> Result<Exit, Stop> {
    let file = std::fs::File::open(&args.target)
        .map_err(|error| Stop::new(Exit::Usage, format!("cannot read {}: {error}", args.target)))?;
    report(&args.target, check(std::io::BufReader::new(file), None))
}

/// Writes what is still to come to `sink`.
pub async fn copy(source: &mut Opened, sink: &mut impl Write) -> Result<(), Stop> {
    while let Some(bytes) = source.next(STALL).await? {
        sink.write_all(&bytes)?;
    }
    Ok(sink.flush()?)
}

/// Writes what is still to come to a file, which appears under its name only when it is whole, and returns the
/// SHA-256 of it in hexadecimal.
pub async fn save(source: &mut Opened, path: &Path) -> Result<String, Stop> {
    let mut file = Partial::create(path)?;
    let mut hash = Sha256::new();
    while let Some(bytes) = source.next(STALL).await? {
        hash.update(&bytes);
        file.write(&bytes)?;
    }
    file.finish()?;
    Ok(hex(&hash.finalize()))
}

/// A file that gets its name when it is finished.
struct Partial<'a> {
    file: std::fs::File,
    partial: PathBuf,
    path: &'a Path,
}

impl<'a> Partial<'a> {
    fn create(path: &'a Path) -> Result<Self, Stop> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".part");
        let partial = PathBuf::from(partial);
        let file = std::fs::File::create(&partial).map_err(|error| cannot_write(path, &error))?;
        Ok(Self { file, partial, path })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.file.write_all(bytes).map_err(|error| cannot_write(self.path, &error))
    }

    fn finish(self) -> Result<(), Stop> {
        std::fs::rename(&self.partial, self.path).map_err(|error| cannot_write(self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Stop {
    Stop::new(Exit::Failed, format!("cannot write {}: {error}", path.display()))
}

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hands an archive on, piece by piece, and checks it meanwhile: in a thread of its own, since its reader blocks.
async fn check_on_the_way(
    source: &mut Opened,
    sealed: Option<String>,
    mut pass_on: impl FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<Checked, Stop> {
    let (sender, receiver) = mpsc::channel(4);
    let mut sender = Some(sender);
    let reading =
        tokio::task::spawn_blocking(move || check(Pieces { receiver, piece: Bytes::new() }, sealed.as_deref()));
    while let Some(bytes) = source.next(STALL).await? {
        pass_on(&bytes)?;
        // Behind the end of an archive, or behind what is wrong with it, the reader is gone.
        if let Some(own) = &sender
            && own.send(bytes).await.is_err()
        {
            sender = None;
        }
    }
    drop(sender);
    reading.await.map_err(|error| Stop::new(Exit::Failed, error.to_string()))
}

fn report(name: &str, checked: Checked) -> Result<Exit, Stop> {
    match checked {
        Ok(files) => {
            out::line(&format!("{name} is whole: {files} files"))?;
            Ok(Exit::Done)
        }
        Err(wrong) => {
            for what in wrong {
                out::line(&format!("{name}: {what}"))?;
            }
            Ok(Exit::Failed)
        }
    }
}

/// The body of an answer as something to read from.
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.piece.len());
        into[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}

#[derive(Deserialize)]
struct Manifest {
    files: Vec<ManifestEntry>,
}

#[derive(Deserialize)]
struct ManifestEntry {
    path: String,
    sha256: String,
}

/// The number of files, or everything that is wrong.
type Checked = Result<usize, Vec<String>>;

/// Compares every file of the archive with its manifest, and that with the SHA-256 it was sealed with, if it is known.
fn check(archive: impl Read, sealed: Option<&str>) -> Checked {
    let broken = |error: std::io::Error| vec![format!("not a whole archive: {error}")];
    let mut archive = tar::Archive::new(archive);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut manifest = None;
    let mut wrong = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        if entry.header().entry_type().is_dir() {
            continue;
        }
        if !entry.header().entry_type().is_file() {
            wrong.push(format!("{path} is no plain file"));
            continue;
        }
        if path == MANIFEST && manifest.is_none() {
            let mut text = Vec::new();
            entry.by_ref().take(MANIFEST_BYTES).read_to_end(&mut text).map_err(broken)?;
            if sealed.is_some_and(|sealed| !sealed.eq_ignore_ascii_case(&hex(&Sha256::digest(&text)))) {
                wrong.push(format!("{MANIFEST} was changed: it is not the one that was sealed"));
            }
            manifest = Some(serde_json::from_slice::<Manifest>(&text));
            continue;
        }
        let mut hash = Sha256::new();
        std::io::copy(&mut entry, &mut HashWriter(&mut hash)).map_err(broken)?;
        if found.insert(path.clone(), hex(&hash.finalize())).is_some() {
            wrong.push(format!("{path} is there twice"));
        }
    }
    let manifest = match manifest {
        None => return Err(vec![format!("no {MANIFEST} in it: not a record, or cut short")]),
        Some(Err(error)) => {
            wrong.push(format!("{MANIFEST}: {error}"));
            return Err(wrong);
        }
        Some(Ok(manifest)) => manifest,
    };
    let files = manifest.files.len();
    for ManifestEntry { path, sha256 } in manifest.files {
        match found.remove(&path) {
            None => wrong.push(format!("{path} is missing")),
            Some(hash) if !hash.eq_ignore_ascii_case(&sha256) => wrong.push(format!("{path} was changed")),
            Some(_) => {}
        }
    }
    wrong.extend(found.into_keys().map(|path| format!("{path} is not in the manifest")));
    if wrong.is_empty() { Ok(files) } else { Err(wrong) }
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            builder.append_data(&mut header, path, *bytes).expect("appends");
        }
        builder.into_inner().expect("an archive")
    }

    fn record(log: &[u8], more: &[(&str, &[u8])]) -> Vec<u8> {
        let hash = hex(&Sha256::digest(b"hello\n"));
        let manifest = format!(r#"{{"run_id":"r-1","files":[{{"path":"logs/1-1.log","size":6,"sha256":"{hash}"}}]}}"#);
        archive(&[&[("manifest.json", manifest.as_bytes()), ("logs/1-1.log", log)], more].concat())
    }

    #[test]
    fn a_whole_record_is_whole() {
        let whole = record(b"hello\n", &[]);
        assert_eq!(check(whole.as_slice(), None), Ok(1));
        let wrong = check(whole.as_slice(), Some("00")).expect_err("another manifest was sealed");
        assert_eq!(wrong, ["manifest.json was changed: it is not the one that was sealed"]);
    }

    #[test]
    fn every_difference_is_found() {
        let check = |bytes: &[u8], expect: &str| {
            let wrong = check(bytes, None).expect_err(expect);
            assert!(wrong.iter().any(|what| what.contains(expect)), "{wrong:?}");
        };
        check(&record(b"hellO\n", &[]), "logs/1-1.log was changed");
        check(&record(b"hello\n", &[("x", b"1")]), "x is not in the manifest");
        check(&record(b"hello\n", &[("logs/1-1.log", b"hello\n")]), "is there twice");
        check(&archive(&[("run.json", b"{}")]), "no manifest.json");
        check(&archive(&[("manifest.json", b"{")]), "manifest.json");
        check(&archive(&[("manifest.json", br#"{"files":[{"path":"a","sha256":""}]}"#)]), "a is missing");
        check(&record(b"hello\n", &[])[..1300], "not a whole archive");
        check(b"no tar at all", "no");
    }
}
