//! The wall clock is stepped, the machine sleeps, the daemon is down or keeps being started: by an injected clock.
//! What lasts is counted on the daemon's own scale: a step ends nothing and makes nothing immortal.

use mediator::clock::rfc3339;
use serde_json::json;

use crate::support::{Daemon, Lab, on_board, one_step, requires, step, with};

const HOUR_MS: i64 = 3_600_000;

/// An hour and a day, either way.
const STEPS: [i64; 4] = [-24 * HOUR_MS, -HOUR_MS, HOUR_MS, 24 * HOUR_MS];

fn ttl(lab: &Lab, node: &str) -> i64 {
    lab.show_node(node)["lease"]["ttl_seconds"].as_i64().expect("a lease")
}

/// The time that `text` shows must be that of the wall clock.
#[track_caller]
fn expect_now(lab: &Lab, text: &serde_json::Value) {
    assert_eq!(text.as_str().expect("a time"), rfc3339(lab.now(), lab.clock.offset()));
}

#[test]
fn a_step_of_the_wall_clock_moves_no_deadline() {
    for by in STEPS {
        let lab = Lab::with(|settings| settings.idempotency_retention_ms = 700_000);
        lab.node("b1", &["board"]);
        lab.static_node("s1", &["scope"]);
        let run = lab.placed(&one_step());
        let claim = lab.claimed("b1");
        let waiting = lab.queued(&with(one_step(), "queue_timeout_seconds", 400));
        let asking = lab.placed(&json!({
            "requires": requires(&["s=scope"]), "steps": [with(json!({"id": "q"}), "ask", json!({"prompt": "?", "timeout_seconds": 500}))],
        }));
        let laser = json!({"requires": requires(&["l=laser"]), "steps": [step("w", "l")]});
        assert_eq!(lab.keyed("POST", "/v1/runs", "k", &laser).status, 422);
        lab.advance(300.0);
        lab.clock.step_wall(by);
        lab.settle();
        assert_eq!(lab.clock.offset(), by, "it is noticed");
        // Nothing has ended.
        assert_eq!((lab.state(&run).as_str(), lab.steps(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", "CLAIMED", 300));
        assert_eq!((lab.state(&waiting).as_str(), lab.steps(&asking).as_str()), ("QUEUED", "ASKED"));
        assert_eq!(lab.get("/v1/idempotency/k").expect(200)["state"], "stored");
        // Everything ends at its time, and is shown with the clock's.
        lab.advance(99.0);
        assert_eq!(lab.state(&waiting), "QUEUED");
        lab.advance(1.0);
        assert_eq!(lab.state(&waiting), "FAILED queue-timeout");
        expect_now(&lab, &lab.run(&waiting)["ended_at"]);
        lab.advance(99.0);
        assert_eq!(lab.steps(&asking), "ASKED");
        lab.advance(1.0);
        assert_ne!(lab.steps(&asking), "ASKED");
        lab.advance(99.0);
        assert_eq!(lab.state(&run), "RUNNING");
        lab.advance(1.0);
        assert_eq!(lab.state(&run), "FAILED node-lost");
        expect_now(&lab, &lab.run(&run)["ended_at"]);
        lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
        lab.advance(99.0);
        assert_eq!(lab.get("/v1/idempotency/k").expect(200)["state"], "stored");
        lab.advance(2.0);
        assert_eq!(lab.get("/v1/idempotency/k").expect(200)["state"], "expired");
    }
}

/// A clock that is set to and fro all the time (a bad time server) neither ends a lease nor keeps one.
#[test]
fn a_wall_clock_that_jumps_about_changes_nothing() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    for minute in 0..59 {
        lab.clock.step_wall(STEPS[minute % 4]);
        lab.advance(10.0);
        assert_eq!(lab.state(&run), "RUNNING");
    }
    lab.clock.step_wall(-24 * HOUR_MS);
    lab.advance(10.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
}

/// Stepped while the daemon is down: it cannot know (a time limit may have passed, hence the long one here), and no
/// lease may end by it nor outlive its lifetime.
#[test]
fn a_step_while_the_daemon_is_down_ends_no_lease_and_makes_none_immortal() {
    for by in STEPS {
        let mut lab = Lab::with(|settings| settings.run_limit_ms = 30 * 24 * HOUR_MS);
        lab.node("b1", &["board"]);
        let run = lab.placed(&on_board(json!([step("w", "dut"), {"id": "h", "hold": {}}])));
        let claim = lab.claimed("b1");
        lab.advance(100.0);
        let before = lab.now();
        lab.stop();
        lab.clock.step_wall(by);
        lab.start();
        assert!(lab.now() >= before - 100_000, "the scale never goes behind what was recorded");
        assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 600), "{by}");
        assert_eq!(lab.steps(&run), "CLAIMED PENDING");
        lab.advance(599.0);
        assert_eq!(lab.state(&run), "RUNNING", "{by}");
        lab.advance(1.0);
        assert_eq!(lab.state(&run), "FAILED node-lost", "{by}");
        expect_now(&lab, &lab.run(&run)["ended_at"]);
        lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    }
}

/// Down for longer than a lease, and the clock wrong as well: the holder may still report.
#[test]
fn after_a_downtime_longer_than_a_lease_its_holder_goes_on() {
    for by in STEPS {
        let mut lab = Lab::new();
        lab.node("b1", &["board"]);
        let run = lab.placed(&one_step());
        let claim = lab.claimed("b1");
        lab.stop();
        lab.clock.step_wall(by);
        lab.clock.advance(std::time::Duration::from_secs(10_000));
        lab.start();
        lab.settle();
        assert_eq!(lab.state(&run), "RUNNING", "{by}");
        lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
        assert_eq!(lab.state(&run), "SUCCEEDED succeeded", "{by}");
    }
}

/// The machine sleeps for hours. The scale has gone on; a sign that comes first, counts first.
#[test]
fn after_a_suspend_the_first_sign_counts_and_silence_ends() {
    for (gives_a_sign, expected) in [(true, "RUNNING"), (false, "FAILED node-lost")] {
        let lab = Lab::new();
        lab.node("b1", &["board"]);
        let run = lab.placed(&one_step());
        lab.clock.advance(std::time::Duration::from_secs(7200));
        if gives_a_sign {
            lab.heartbeat("b1");
        }
        lab.settle();
        assert_eq!(lab.state(&run), expected);
    }
}

/// In a restart loop, with a clock that is never the same twice, leases of silent holders still end, and nobody
/// else's.
#[test]
fn in_a_restart_loop_silence_ends_and_a_sign_goes_on() {
    let mut lab = Lab::with(|settings| settings.run_limit_ms = 30 * 24 * HOUR_MS);
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    let (silent, heard) = (lab.placed(&one_step()), lab.placed(&one_step()));
    for start in 0..12 {
        lab.stop();
        lab.clock.step_wall(STEPS[start % 4]);
        lab.clock.advance(std::time::Duration::from_secs(60));
        lab.start();
        lab.heartbeat("b2");
        lab.advance(190.0);
        assert_eq!(lab.state(&heard), "RUNNING", "start {start}");
    }
    assert_eq!(lab.holder("b2"), Some(heard));
    assert_eq!(lab.state(&silent), "FAILED node-lost");
}

/// Deadlines that pass in suspend are met at its end: the one timer of the daemon is on CLOCK_BOOTTIME. No test can
/// suspend the machine; the kernel tells which clock a timer is on.
#[test]
fn the_alarm_of_the_daemon_runs_on_in_suspend() {
    const BOOTTIME: &str = "7";
    let daemon = Daemon::start();
    let infos = std::fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).expect("this is Linux");
    let clocks: Vec<String> = infos
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .filter_map(|info| Some(info.lines().find_map(|line| line.strip_prefix("clockid:"))?.trim().to_owned()))
        .collect();
    assert_eq!(clocks, [BOOTTIME]);
}
