//! `make fuzz`: contracts and JSON that nobody would write, until the time is over or a promise of `checks` is broken.
//!
//! A program and not a set of tests, with stable Rust alone: no coverage tells where an input got to, but the answer does.
//! One that is refused with words or at a place that were not seen before joins the corpus, and so does one that is
//! accepted with new fields. So the mutations get behind the first check, and then behind the next.
//!
//! What it finds is cut down, written to `target/fuzz`, and kept in `tests/fuzz/finds` from then on, where `cargo test` tries
//! it again before a second of new ones.

mod checks;
mod mutate;
mod random;
mod seeds;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mediator::clock::boottime_ms;
use random::Random;

/// The most that a mutation is let grow to: more than a request's body may have.
const MOST_BYTES: usize = 300_000;

/// How many inputs the corpus may come to hold.
const MOST_INPUTS: usize = 4_000;

fn main() -> ExitCode {
    // `cargo test NAME` runs those that are called so.
    let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !names.is_empty() && !names.iter().any(|name| "fuzz".contains(name.as_str())) {
        return ExitCode::SUCCESS;
    }
    let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let seconds: u64 = set("FUZZ_SECONDS").map_or(1, |text| text.parse().expect("FUZZ_SECONDS: a number"));
    let seed = set("FUZZ_SEED").map(|text| text.parse().expect("FUZZ_SEED: a number"));
    let seed: u64 = seed.unwrap_or_else(|| getrandom::u64().expect("there are random numbers"));
    println!("fuzz: SEED={seed}, {seconds} s");
    // A panic is a find like another, and told with its input.
    std::panic::set_hook(Box::new(|_| {}));
    match fuzz(seed, seconds) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(find) => {
            eprintln!("{find}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(seed: u64, seconds: u64) -> Result<String, String> {
    let mut corpus = kept()?;
    let finds = corpus.len();
    corpus.extend(seeds::all());
    let mut seen = HashSet::new();
    // Every second begins with one that is accepted: of the others hardly any change makes one.
    let mut good = Vec::new();
    for input in &corpus {
        let answer = attempt(input).map_err(|broken| told(input, &broken, seed))?;
        if answer.starts_with("accepted") {
            good.push(input.clone());
        }
        seen.insert(answer);
    }
    let mut random = Random(seed);
    let until = boottime_ms() + i64::try_from(seconds * 1000).expect("no age");
    let (mut tried, mut accepted, mut bytes) = (0u64, 0u64, 0usize);
    while boottime_ms() < until {
        // Not the clock for each: it would be asked as often as anything is tried.
        for _ in 0..64 {
            let from = if random.once_in(2) { &good } else { &corpus };
            let begin = random.of(from).clone();
            let input = mutate::next(&mut random, &begin, &corpus, MOST_BYTES);
            let answer = attempt(&input).map_err(|broken| told(&input, &broken, seed))?;
            tried += 1;
            bytes += input.len();
            let is_good = answer.starts_with("accepted");
            accepted += u64::from(is_good);
            let list = if is_good { &mut good } else { &mut corpus };
            if seen.insert(answer) && list.len() < MOST_INPUTS && input.len() < 20_000 {
                list.push(input);
            }
        }
    }
    Ok(format!(
        "fuzz: {tried} inputs of {} bytes on average, {accepted} accepted, {} different answers, {finds} earlier finds; \
         nothing was found",
        bytes as u64 / tried.max(1),
        seen.len()
    ))
}

/// Returns the earlier finds.
fn kept() -> Result<Vec<Vec<u8>>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/finds");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    Ok(paths.iter().map(|path| std::fs::read(path).expect("readable")).collect())
}

/// Checks an input; a panic breaks a promise like anything else.
fn attempt(input: &[u8]) -> Result<String, String> {
    catch_unwind(AssertUnwindSafe(|| checks::check(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Cuts an input down, keeps it, and tells of it.
fn told(input: &[u8], broken: &str, seed: u64) -> String {
    let small = smallest(input, broken);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fuzz");
    let path = folder.join(format!("find-{seed}"));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, &small));
    let place = written.map_or_else(|error| format!("could not be kept: {error}"), |()| path.display().to_string());
    let shown: String = String::from_utf8_lossy(&small).chars().take(2000).collect();
    format!(
        "fuzz: {broken}\n  SEED={seed} finds it again; {} bytes, {place}; mend it, and keep the file in tests/fuzz/finds\n  {shown:?}",
        small.len()
    )
}

/// Takes parts out as long as the same promise is broken.
fn smallest(input: &[u8], broken: &str) -> Vec<u8> {
    let kind = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    let mut small = input.to_vec();
    let mut part = small.len() / 2;
    let until = boottime_ms() + 20_000;
    while part > 0 && boottime_ms() < until {
        let mut at = 0;
        while at < small.len() {
            let mut less = small.clone();
            less.drain(at..(at + part).min(small.len()));
            if attempt(&less).is_err_and(|other| kind(&other) == kind(broken)) {
                small = less;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    small
}
