//! `cancel`: runs that are named, and all that fit.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::fake::{Fake, Reply, run};
use crate::program::mediator;

/// A daemon with so many runs that wait and that run. Every third is called `nightly`. The run `w-7` ends before its
/// cancel comes, `w-8` starts, and `w-9` is pruned.
fn daemon(waiting: usize, running: usize) -> Fake {
    Fake::start(move |asked| {
        if let Some(run_id) = asked.line.strip_prefix("POST /v1/runs/").and_then(|rest| rest.strip_suffix("/cancel")) {
            return match run_id {
                "w-7" => Reply::json(200, run("SUCCEEDED", json!({"run_id": run_id}))),
                "w-8" if asked.body["while"] == "QUEUED" => Reply::json(200, run("RUNNING", json!({"run_id": run_id}))),
                "w-9" => Reply::problem(410, "gone", "long ago"),
                _ => Reply::json(200, run("CANCELLED", json!({"run_id": run_id})))
                    .header("idempotency-expires", "2026-01-09T02:00:00.000Z"),
            };
        }
        let of = |name: &str| asked.line.split(['?', '&']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let (prefix, state, count) = match of("state").expect("what has ended is not asked for") {
            "QUEUED" => ("w", "QUEUED", waiting),
            _ => ("r", "RUNNING", running),
        };
        let from = of("cursor").map_or(0, |cursor| cursor[1..].parse().expect("a cursor"));
        let upto = count.min(from + of("limit").and_then(|limit| limit.parse().ok()).unwrap_or(50));
        let name = |at: usize| if at.is_multiple_of(3) { "nightly" } else { "smoke" };
        let runs: Vec<Value> = (from..upto)
            .map(|at| json!({"run_id": format!("{prefix}-{at}"), "state": state, "name": name(at), "principal": "kim"}))
            .collect();
        Reply::json(200, json!({"runs": runs, "next": (upto < count).then(|| format!("c{upto}"))}))
    })
}

fn cancels(fake: &Fake) -> Vec<String> {
    let lines = fake.asked().into_iter().map(|asked| asked.line);
    lines.filter_map(|line| Some(line.strip_prefix("POST /v1/runs/")?.strip_suffix("/cancel")?.to_owned())).collect()
}

#[test]
fn several_runs_are_cancelled_even_if_one_is_unknown() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs/r-1/cancel" => Reply::json(200, run("CANCELLED", json!({"verdict": {"kind": "cancelled"}}))),
        _ => Reply::problem(404, "not-found", "no such run"),
    });
    let done = mediator(&fake, &["cancel", "r-0", "r-1", "--reason", "wrong branch"]).expect(4);
    assert_eq!(done.out, "run r-1 CANCELLED: cancelled\n");
    assert!(done.err.contains("r-0: no such run"), "{done:?}");
    assert_eq!(fake.body_of("POST /v1/runs/r-1/cancel"), json!({"reason": "wrong branch"}));
}

#[test]
fn thousands_are_found_by_pages_and_cancelled_each_once_with_a_key_of_its_own() {
    let fake = daemon(3210, 501);
    let done = mediator(&fake, &["cancel", "--principal", "kim", "--yes", "--reason", "enough"]).expect(0);
    assert_eq!(done.out, "cancelled 3709 of 3711 runs; 2 had ended\n");
    let asked = fake.asked();
    let pages = asked.iter().filter(|asked| asked.line.starts_with("GET ")).count();
    assert_eq!(pages, 7 + 2);
    assert!(asked[0].line.contains("limit=500&state=QUEUED&principal=kim"), "{}", asked[0].line);
    let keys: BTreeSet<&str> = asked.iter().filter_map(|asked| asked.key.as_deref()).collect();
    let cancels = cancels(&fake);
    assert_eq!((keys.len(), cancels.len()), (3711, 3711));
    assert_eq!(cancels.iter().collect::<BTreeSet<_>>().len(), 3711);
    // What is freed would start those that wait.
    let first_running = cancels.iter().position(|run| run.starts_with('r')).expect("they are cancelled too");
    assert!(cancels[..first_running].iter().all(|run| run.starts_with('w')) && first_running == 3210);
    assert_eq!(fake.body_of("POST /v1/runs/w-0/cancel"), json!({"reason": "enough", "while": null}));
}

#[test]
fn filters_combine_and_the_name_is_compared_here() {
    let fake = daemon(12, 6);
    let args = ["cancel", "--work", "gerrit:4711", "--node", "b-1", "--name", "nightly", "--yes"];
    let done = mediator(&fake, &[&args[..], &["--json"]].concat()).expect(0);
    let sum: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(
        (&sum["matched"], &sum["ended"], &sum["started"], &sum["refused"]),
        (&json!(6), &json!(["w-9"]), &json!([]), &json!([]))
    );
    let mut cancelled = sum["cancelled"].as_array().expect("a list").clone();
    cancelled.sort_by_key(Value::to_string);
    assert_eq!(cancelled, ["r-0", "r-3", "w-0", "w-3", "w-6"]);
    assert!(
        fake.asked()
            .iter()
            .filter(|asked| asked.line.starts_with("GET "))
            .all(|asked| { asked.line.contains("work=gerrit%3A4711&node=b-1") && !asked.line.contains("name") })
    );
}

/// Whoever says `--state queued` does not mean a run that has started since.
#[test]
fn a_run_that_started_meanwhile_goes_on_if_those_that_wait_were_meant() {
    let fake = daemon(10, 3);
    let done = mediator(&fake, &["cancel", "--state", "Queued", "--yes"]).expect(0);
    assert_eq!(done.out, "cancelled 7 of 10 runs; 2 had ended; 1 had started and went on\n");
    assert!(cancels(&fake).iter().all(|run| run.starts_with('w')));
    let fake = daemon(10, 3);
    assert_eq!(mediator(&fake, &["cancel", "--state", "running", "--yes"]).expect(0).out, "cancelled 3 of 3 runs\n");
}

#[test]
fn without_a_terminal_nothing_is_cancelled_unless_it_was_said() {
    let fake = daemon(30, 2);
    let done = mediator(&fake, &["cancel", "--principal", "kim"]).expect(2);
    assert!(
        done.err.contains("32 runs (30 waiting, 2 running) would be cancelled") && done.err.contains("--yes"),
        "{done:?}"
    );
    assert!(
        done.err.contains("w-9  QUEUED") && !done.err.contains("w-10") && done.err.contains("and 22 more"),
        "{done:?}"
    );
    assert!(done.out.is_empty() && cancels(&fake).is_empty(), "{done:?}");
}

#[test]
fn that_nothing_fits_is_said_and_no_failure() {
    let fake = daemon(0, 0);
    let done = mediator(&fake, &["cancel", "--name", "nightly"]).expect(0);
    assert_eq!(done.out, "nothing to cancel: no run that has not ended fits\n");
    let sum: Value =
        serde_json::from_str(&mediator(&fake, &["cancel", "--name", "x", "--json"]).expect(0).out).expect("JSON");
    assert_eq!(sum, json!({"matched": 0, "cancelled": [], "ended": [], "started": [], "refused": []}));
}

#[test]
fn runs_or_filters_and_never_both_or_none() {
    let fake = daemon(1, 1);
    for args in [
        &["cancel"][..],
        &["cancel", "--yes"],
        &["cancel", "r-1", "--state", "queued"],
        &["cancel", "--state", "failed", "--yes"],
        &["cancel", "--state", "queued", "--yes", "--idempotency-key", "k"],
    ] {
        mediator(&fake, args).expect(2);
    }
    assert_eq!(fake.asked().len(), 0);
}

#[test]
fn on_a_terminal_it_is_asked_first() {
    let answer = |keys: &[u8]| {
        let fake = daemon(0, 2);
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are terminals");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let path = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("text");
        let theirs = || OwnedFd::from(File::options().read(true).write(true).open(&path).expect("it is there"));
        let child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(["cancel", "--work", "w"])
            .env_clear()
            .envs([("MEDIATOR_URL", format!("http://{}", fake.addr)), ("MEDIATOR_TOKEN", "t".to_owned())])
            .stdin(Stdio::from(theirs()))
            .stderr(Stdio::from(theirs()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut terminal = File::from(ours);
        let mut shown = Vec::new();
        while !String::from_utf8_lossy(&shown).contains("[y/N]") {
            let mut buffer = [0; 1024];
            let read = terminal.read(&mut buffer).expect("it asks");
            shown.extend_from_slice(&buffer[..read]);
        }
        terminal.write_all(keys).expect("it listens");
        let output = child.wait_with_output().expect("ends");
        let shown = String::from_utf8_lossy(&shown).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), shown, cancels(&fake).len())
    };
    let (code, out, shown, cancelled) = answer(b"y\n");
    assert_eq!((code, out.as_str(), cancelled), (Some(0), "cancelled 2 of 2 runs\n", 2), "{shown}");
    assert!(shown.contains("r-1  RUNNING") && shown.contains("cancel 2 runs (0 waiting, 2 running)? [y/N]"), "{shown}");
    for keys in [&b"\n"[..], b"no\n"] {
        let (code, out, _, cancelled) = answer(keys);
        assert_eq!((code, out.as_str(), cancelled), (Some(1), "", 0));
    }
}

/// A daemon that goes away in the middle: what was done is told, and the rest is not tried.
#[test]
fn what_was_done_before_the_daemon_went_away_is_told() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        line if line.starts_with("GET /v1/runs?limit=500&state=QUEUED") => {
            let runs: Vec<Value> = (0..40).map(|at| json!({"run_id": format!("w-{at}"), "state": "QUEUED"})).collect();
            Reply::json(200, json!({"runs": runs, "next": null}))
        }
        line if line.starts_with("GET ") => Reply::json(200, json!({"runs": [], "next": null})),
        "POST /v1/runs/w-20/cancel" => Reply::bytes(b"no JSON"),
        line => Reply::json(200, run("CANCELLED", json!({"run_id": line}))).header("idempotency-expires", "x"),
    });
    let done = mediator(&fake, &["cancel", "--name", "", "--yes"]).expect(3);
    assert!(done.out.starts_with("cancelled ") && done.out.ends_with("not tried, or unknown\n"), "{done:?}");
    assert!(cancels(&fake).len() < 40, "{done:?}");
}
