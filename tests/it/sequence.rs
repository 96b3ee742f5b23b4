//! Long random sequences of everything that can be done to the daemon; after each operation everything that can be
//! said about the rows is looked at.
//!
//! `MEDIATOR_SEQUENCE_SEED` repeats one sequence, `MEDIATOR_SEQUENCE_STEPS` lengthens all of them. The seed and the
//! last operations are written to standard error when a sequence fails, also when the writer's thread does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, Once};

use mediator::store::NEVER;
use serde_json::{Map, Value, json};

use crate::support::{Lab, Parked, Reply, advert, result_path};

/// How many operations each sequence has.
const STEPS: usize = 600;

/// The sequences that are always done; one more begins with a seed of its own each time.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// I1 to I8, I11: whatever is done in whatever order, with time passing and restarts between.
#[test]
fn random_sequences_keep_every_invariant() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let steps = number("MEDIATOR_SEQUENCE_STEPS").map_or(STEPS, |steps| usize::try_from(steps).expect("a number"));
    let seeds = match number("MEDIATOR_SEQUENCE_SEED") {
        Some(seed) => vec![seed],
        None => {
            let mut fresh = [0; 4];
            getrandom::fill(&mut fresh).expect("random bytes");
            SEEDS.into_iter().chain([u64::from(u32::from_le_bytes(fresh)) + 1000]).collect()
        }
    };
    let next = Mutex::new(seeds.into_iter());
    let counts = Mutex::new(BTreeMap::<&str, usize>::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = { next.lock().expect("no holder panics").next() } {
                    let trail = Trail::begin(seed);
                    for (what, count) in Sequence::new(seed, trail).go(steps) {
                        *counts.lock().expect("no holder panics").entry(what).or_default() += count;
                    }
                }
            });
        }
    });
    eprintln!("{:?}", counts.lock());
    if steps < STEPS || number("MEDIATOR_SEQUENCE_SEED").is_some() {
        return;
    }
    // A test that never gets anywhere promises nothing.
    let counts = counts.into_inner().expect("no holder panics");
    let reached = |what: &str| counts.get(what).copied().unwrap_or(0);
    for what in [
        "placed",
        "queued",
        "rejected",
        "promoted",
        "claimed",
        "woken",
        "replayed",
        "acquired",
        "not acquired",
        "looped",
        "skipped",
        "hold",
        "answered",
        "settling",
        "cleaned",
        "not cleaned",
        "succeeded",
        "failed",
        "cancelled",
        "together",
    ] {
        assert!(reached(what) > 0, "never {what}: {counts:?}");
    }
    assert!(reached("refused") < reached("placed") + reached("queued"), "most contracts say nothing: {counts:?}");
}

/// The last operations of a sequence, for whoever has to find out why it failed.
#[derive(Clone)]
struct Trail(Arc<Mutex<Vec<String>>>);

static TRAILS: Mutex<Vec<Trail>> = Mutex::new(Vec::new());

impl Trail {
    fn begin(seed: u64) -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let earlier = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                earlier(info);
                // The writer's panic ends the process, and with it what the test harness has captured.
                if std::thread::current().name().is_some_and(|name| name != "writer") {
                    return;
                }
                use std::io::Write as _;
                let mut text = format!("{info}\n");
                for trail in TRAILS.lock().expect("no holder panics").iter() {
                    let lines = trail.0.lock().expect("no holder panics");
                    let last = lines.len().saturating_sub(40).max(1);
                    let _ = writeln!(text, "{}\n  {}", lines[0], lines[last..].join("\n  "));
                }
                let _ = std::io::stderr().write_all(text.as_bytes());
            }));
        });
        let trail = Self(Arc::new(Mutex::new(vec![format!("sequence with MEDIATOR_SEQUENCE_SEED={seed}")])));
        TRAILS.lock().expect("no holder panics").push(trail.clone());
        trail
    }

    fn add(&self, line: String) {
        self.0.lock().expect("no holder panics").push(line);
    }
}

/// SplitMix64: enough, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).expect("small")
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// A step that an agent took.
#[derive(Clone)]
struct Taken {
    node: String,
    instance: String,
    claim: Value,
}

/// What the rows say of one step.
#[derive(Clone, Debug, PartialEq)]
struct StepSeen {
    kind: String,
    state: String,
    attempt: i64,
    node: Option<String>,
    needs: Vec<String>,
    id: String,
    ready: bool,
    deadline: i64,
}

/// What the rows say of one run.
#[derive(Clone, Debug, PartialEq)]
struct RunSeen {
    state: String,
    contract: String,
    ended: Option<String>,
    steps: Vec<StepSeen>,
}

struct Sequence {
    dice: Dice,
    /// Whether many often come at once.
    is_crowded: bool,
    trail: Trail,
    lab: Lab,
    started: i64,
    looked: i64,
    lives: BTreeMap<String, usize>,
    taken: Vec<Taken>,
    /// Who began which attempt.
    begun: HashMap<(String, i64, i64), (String, String)>,
    /// Reports that counted, with their answers.
    reports: Vec<(String, Value, Value)>,
    seen: BTreeMap<String, RunSeen>,
    acknowledged: BTreeSet<String>,
    submitted: usize,
    /// A claim that waits, and for whom.
    waiting: Option<(String, String)>,
    parked: Option<Parked>,
    counts: RefCell<BTreeMap<&'static str, usize>>,
}

const BOARDS: [&str; 3] = ["b1", "b2", "b3"];
const AGENTS: [&str; 6] = ["b1", "b2", "b3", "h1", "h2", "m1"];
/// Those that are cleaned after every lease.
const CLEANED: [&str; 2] = ["b3", "m1"];

fn capabilities(node: &str, variant: usize) -> Vec<&'static str> {
    match (node, variant) {
        ("b1" | "b2", 0) => vec!["board model=a"],
        ("b3", 0) => vec!["board model=b"],
        ("h1", 0) => vec!["host"],
        ("h2", 0) => vec!["host", "meter"],
        ("m1", 0) => vec!["board model=b", "host fast=1"],
        (_, 1) => vec!["board model=b"],
        (_, 2) => vec!["host"],
        _ => vec!["board model=a", "host", "meter"],
    }
}

impl Sequence {
    fn new(seed: u64, trail: Trail) -> Self {
        let mut dice = Dice(seed);
        let narrow = dice.percent(30);
        let lab = Lab::with(|settings| {
            settings.lease_max_per_run = if narrow { 2 } else { 16 };
            settings.lease_ttl_ms = 120_000;
            settings.hold_ttl_ms = 60_000;
        });
        let started = lab.now();
        Self {
            dice,
            is_crowded: seed.is_multiple_of(2),
            trail,
            lab,
            started,
            looked: 0,
            lives: BTreeMap::new(),
            taken: Vec::new(),
            begun: HashMap::new(),
            reports: Vec::new(),
            seen: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            submitted: 0,
            waiting: None,
            parked: None,
            counts: RefCell::default(),
        }
    }

    fn go(mut self, steps: usize) -> BTreeMap<&'static str, usize> {
        for node in AGENTS {
            self.advertise(node, 0);
        }
        self.lab.static_node("s1", &["plug"]);
        for _ in 0..steps {
            self.operation();
            self.look_at_parked();
            self.look();
        }
        self.finish();
        std::mem::take(self.counts.get_mut())
    }

    fn note(&self, line: String) {
        self.trail.add(line);
    }

    fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let reply = self.lab.post(path, body);
        self.note(format!("POST {path} {body} -> {} {}", reply.status, String::from_utf8_lossy(&reply.bytes)));
        assert!(reply.status < 500, "{path} {body}: {}", reply.body);
        reply
    }

    // ---- operations

    fn operation(&mut self) {
        if self.is_crowded && self.dice.percent(15) {
            return self.crowd();
        }
        match self.dice.below(100) {
            0..20 => self.submit(),
            20..38 => self.claim(),
            38..42 => self.park(),
            42..64 => self.report(),
            64..67 => self.repeat(),
            67..74 => self.answer(),
            74..80 => self.hold(),
            80..83 => self.cancel(),
            83..87 => self.advert(),
            87..88 => self.clean(),
            88..91 => self.drain(),
            91..92 => self.static_nodes(),
            92..99 => self.time(),
            _ => self.restart(),
        }
    }

    fn submit(&mut self) {
        let contract = self.contract();
        let before = self.lab.all_rows();
        let reply = self.post("/v1/runs", &contract);
        match reply.status {
            201 | 202 => {
                self.count(if reply.status == 201 { "placed" } else { "queued" });
                assert_eq!(reply.body["state"] == "QUEUED", reply.status == 202);
                self.acknowledged.insert(reply.body["run_id"].as_str().expect("an id").to_owned());
            }
            422 => {
                self.count("rejected");
                self.acknowledged.insert(reply.body["run_id"].as_str().expect("an id").to_owned());
            }
            400 => {
                self.count("refused");
                assert_eq!(self.lab.all_rows(), before, "a refusal stores nothing");
            }
            other => panic!("a submission was answered {other}"),
        }
    }

    fn contract(&mut self) -> Value {
        let dice = &mut self.dice;
        let mut roles: Vec<(String, usize)> = Vec::new();
        let mut requires = Vec::new();
        for index in 0..1 + dice.below(2) + dice.below(2) * dice.below(2) {
            let name = format!("r{index}");
            let capability = *dice.pick(&["board", "board", "host", "host", "plug", "meter"]);
            let mut role = json!({"as": name, "capability": capability});
            if capability == "board" && dice.percent(40) {
                role["attrs"] = match dice.below(3) {
                    0 => json!({"model": "a"}),
                    1 => json!({"model": "b"}),
                    _ => json!({"node": *dice.pick(&BOARDS)}),
                };
            }
            let count = if dice.percent(15) { 2 } else { 1 };
            if count > 1 {
                role["count"] = json!(count);
            }
            if capability != "plug" {
                roles.push((name, count));
            }
            requires.push(role);
        }
        let mut steps: Vec<Value> = Vec::new();
        let wanted = 1 + dice.below(4);
        let (mut has_hold, mut loop_end) = (false, 0);
        while steps.len() < wanted {
            let at = steps.len();
            let id = format!("s{at}");
            let kind = dice.below(100);
            let mut step = if kind < 58 && !roles.is_empty() {
                let (role, count) = dice.pick(&roles).clone();
                let uses = if dice.percent(30) { format!("{role}.{}", dice.below(count)) } else { role };
                json!({"id": id, "uses": uses, "run": ["work"]})
            } else if kind < 73 {
                json!({"id": id, "ask": {"prompt": "?", "options": ["yes", "no"], "accept": ["yes"]}})
            } else if kind < 84 || roles.is_empty() {
                has_hold = true;
                json!({"id": id, "hold": {}})
            } else {
                let extra = format!("x{at}");
                let (had, not) = (format!("{id}-had"), format!("{id}-not"));
                let capability = *dice.pick(&["board", "host", "meter"]);
                let need = steps.last().map_or(json!([]), |step| json!([step["id"]]));
                steps.push(json!({"id": id, "needs": need, "acquire": {
                    "want": {"as": extra, "capability": capability}, "acquired": had, "unavailable": not}}));
                let mut used = json!({"id": had, "uses": extra, "run": ["use"]});
                if dice.percent(50) {
                    used["release"] = json!([extra]);
                }
                steps.push(used);
                let other = match dice.below(3) {
                    0 => json!({"id": not, "hold": {}, "needs": [id]}),
                    1 => json!({"id": not, "ask": {"prompt": "without?"}, "needs": [id]}),
                    _ => json!({"id": not, "uses": dice.pick(&roles).0, "run": ["do without"], "needs": [id]}),
                };
                has_hold |= other.get("hold").is_some();
                steps.push(other);
                let (role, _) = dice.pick(&roles).clone();
                steps.push(json!({"id": format!("{id}-join"), "uses": role, "run": ["join"], "needs": [had, not]}));
                loop_end = steps.len();
                continue;
            };
            if at > 0 && dice.percent(35) {
                let needs: Vec<String> = (0..at)
                    .filter(|_| dice.percent(50))
                    .map(|earlier| steps[earlier]["id"].as_str().expect("an id").to_owned())
                    .collect();
                step["needs"] = json!(needs);
            }
            if dice.percent(20) {
                step["allow_failure"] = json!(true);
            }
            if dice.percent(20) {
                let back = loop_end + dice.below(at + 1 - loop_end);
                step["loop"] = json!({"back_to": if back == at { id.clone() } else {
                    steps[back]["id"].as_str().expect("an id").to_owned()
                }, "max": 2 + dice.below(2)});
                loop_end = at + 1;
            }
            if dice.percent(25) && !roles.is_empty() && at + 1 == wanted {
                step["release"] = json!([dice.pick(&roles).0]);
            }
            if dice.percent(20) {
                let seconds = 20 + dice.below(200);
                match () {
                    () if step.get("ask").is_some() => step["ask"]["timeout_seconds"] = json!(seconds),
                    () if step.get("hold").is_some() => step["hold"]["timeout_seconds"] = json!(seconds),
                    () => step["timeout_seconds"] = json!(seconds),
                }
            }
            steps.push(step);
        }
        // Ids of our own, so that the same seed picks the same runs.
        self.submitted += 1;
        let dice = &mut self.dice;
        let mut contract = json!({"run_id": format!("r{:05}", self.submitted), "requires": requires, "steps": steps});
        if dice.percent(30) {
            contract["priority"] = json!(i64::try_from(dice.below(5)).expect("small") - 2);
        }
        if dice.percent(20) {
            contract["queue_timeout_seconds"] = json!(30 + dice.below(300));
        }
        if dice.percent(15) {
            contract["limit_seconds"] = json!(60 + dice.below(600));
        }
        if dice.percent(20) {
            contract["distinct_nodes"] = json!(dice.percent(50));
        }
        if has_hold && dice.percent(40) {
            contract["attended"] = json!(true);
        }
        contract
    }

    fn instance(&self, node: &str) -> String {
        format!("{node}-{}", self.lives.get(node).copied().unwrap_or(0))
    }

    fn claim(&mut self) {
        let node = *self.dice.pick(&AGENTS);
        let instance = self.instance(node);
        if self.dice.percent(6) {
            let old = format!("{node}-{}", self.lives.get(node).copied().unwrap_or(0) + 1);
            self.post(&format!("/v1/nodes/{node}/claim"), &json!({"instance": old}));
            return;
        }
        if self.dice.percent(10) {
            self.claim_working(node, &instance);
            return;
        }
        let expected = self.claimable(node, &instance);
        let order = self.order(node, &instance);
        let reply = self.post(&format!("/v1/nodes/{node}/claim"), &json!({"instance": instance}));
        match reply.status {
            200 if order.is_some() => {
                assert_eq!(reply.body["cleaning"].as_str(), order.as_deref());
                if self.dice.percent(70) {
                    self.clean_up(node, &reply.body);
                }
            }
            200 => self.take(node, &instance, &reply.body, expected),
            204 => assert_eq!((expected, order), (None, None), "node {node} has something to do and is told nothing"),
            404 | 409 => {}
            other => panic!("a claim was answered {other}"),
        }
    }

    /// Parks a claim: it must be answered as soon as there is something to claim, whatever brought that about.
    fn park(&mut self) {
        if self.parked.is_some() {
            return;
        }
        let node = *self.dice.pick(&AGENTS);
        let instance = self.instance(node);
        self.note(format!("{instance} waits for a step"));
        let path = format!("/v1/nodes/{node}/claim?wait_seconds=30");
        self.parked = Some(self.lab.park("POST", &path, &json!({"instance": instance})));
        self.waiting = Some((node.to_owned(), instance));
    }

    fn look_at_parked(&mut self) {
        let Some((node, instance)) = self.waiting.clone() else { return };
        self.lab.quiesce();
        for _ in 0..20 {
            if let Some(reply) = self.lab.answered(&mut self.parked) {
                self.note(format!("{instance} waited and is told {} {}", reply.status, reply.body));
                self.waiting = None;
                match reply.status {
                    200 if reply.body["kind"] == "cleanup" => {
                        // It may have been done since the answer was on its way.
                        let due = self.order(&node, &instance);
                        assert!(due.is_none_or(|due| reply.body["cleaning"] == due.as_str()));
                    }
                    200 => {
                        self.count("woken");
                        self.seen.extend(self.read(self.looked));
                        self.take(&node, &instance, &reply.body, None);
                    }
                    204 | 404 | 409 => {}
                    other => panic!("a claim that waited was answered {other}: {}", reply.body),
                }
                return;
            }
            self.seen.extend(self.read(self.looked));
            if self.claimable(&node, &instance).is_none() && self.order(&node, &instance).is_none() {
                return;
            }
            self.lab.quiesce();
        }
        panic!("{instance} waits, and nobody tells it that there is a step to claim");
    }

    /// What this life of the node is to clean, as the rows say.
    fn order(&self, node: &str, instance: &str) -> Option<String> {
        let query = "SELECT (SELECT cleaning FROM cleanings JOIN nodes USING (node_id)
            WHERE node_id = ?1 AND instance = ?2 AND failed_by IS NOT ?2)";
        self.lab.row(query, [node, instance], |row| row.get(0))
    }

    /// Reports on a cleaning that was ordered.
    fn clean_up(&mut self, node: &str, order: &Value) {
        let ended_well = self.dice.percent(80);
        let body = json!({"instance": self.instance(node), "cleaning": order["cleaning"],
            "exit_code": if ended_well { 0 } else { 3 }});
        let view = self.post(&format!("/v1/nodes/{node}/cleaned"), &body).expect(200);
        if ended_well {
            assert_eq!(view["cleaning"], Value::Null);
            self.count("cleaned");
        } else {
            assert_eq!(view["cleaning"]["failure"], "cleanup ended with exit code 3");
            self.count("not cleaned");
        }
        // The answer was lost, or another life is asked: it counts once.
        self.post(&format!("/v1/nodes/{node}/cleaned"), &body).problem(409, "stale-lease");
    }

    /// An operator looks after what is not clean.
    fn clean(&mut self) {
        for node in CLEANED {
            let done = self.dice.percent(50);
            let reply = self.post(&format!("/v1/nodes/{node}/clean"), &json!({"done": done}));
            assert!(matches!(reply.status, 200 | 404), "{}", reply.body);
        }
    }

    fn claim_working(&mut self, node: &str, instance: &str) {
        let Some(taken) = self.taken.iter().rev().find(|taken| taken.node == node).cloned() else { return };
        let claim = &taken.claim;
        let working = json!({"run_id": claim["run_id"], "seq": claim["seq"], "attempt": claim["attempt"]});
        let is_own = taken.instance == instance && self.is_current(&taken);
        let body = json!({"instance": instance, "working": working});
        let reply = self.post(&format!("/v1/nodes/{node}/claim"), &body);
        if self.knows(node, instance) {
            assert_eq!(reply.status, if is_own { 204 } else { 409 }, "working {working}");
        }
    }

    fn knows(&self, node: &str, instance: &str) -> bool {
        let query = "SELECT EXISTS (SELECT 1 FROM nodes WHERE node_id = ?1 AND instance = ?2)";
        self.lab.row(query, [node, instance], |row| row.get(0))
    }

    /// Says whether a claimed step is still in the hands of who claimed it, as the rows say.
    fn is_current(&self, taken: &Taken) -> bool {
        let claim = &taken.claim;
        let params = (
            claim["run_id"].as_str(),
            claim["seq"].as_i64(),
            claim["attempt"].as_i64(),
            &taken.node,
            claim["lease"]["nonce"].as_str(),
        );
        self.lab.row(
            "SELECT EXISTS (SELECT 1 FROM steps JOIN leases USING (run_id, node_id) JOIN runs USING (run_id)
             WHERE run_id = ?1 AND seq = ?2 AND attempt = ?3 AND node_id = ?4 AND nonce = ?5
               AND steps.state = 'CLAIMED' AND runs.state = 'RUNNING')",
            params,
            |row| row.get(0),
        )
    }

    /// What a claim must be answered with: the step in hand, else the first that is ready.
    fn claimable(&self, node: &str, instance: &str) -> Option<(String, i64)> {
        if !self.knows(node, instance) {
            return None;
        }
        let holder: Option<String> =
            self.lab.row("SELECT (SELECT run_id FROM leases WHERE node_id = ?1)", [node], |row| row.get(0));
        let run = holder?;
        let steps = &self.seen[&run].steps;
        let own = |step: &&StepSeen| step.kind == "run" && step.node.as_deref() == Some(node);
        let number = |at: usize| i64::try_from(at).expect("small") + 1;
        if let Some(at) = steps.iter().position(|step| own(&step) && step.state == "CLAIMED") {
            return Some((run, number(at)));
        }
        // An agent that had a step in hand lets holds open by claiming; that readies no command.
        if self.is_stopping(&run) {
            return None;
        }
        let at = steps.iter().position(|step| own(&step) && step.state == "PENDING" && is_ready(steps, step))?;
        Some((run, number(at)))
    }

    fn is_stopping(&self, run: &str) -> bool {
        self.lab.row(
            "SELECT EXISTS (SELECT 1 FROM leases JOIN nodes USING (node_id)
             WHERE run_id = ?1 AND 'at-boundary' IN (owner_mode, operator_mode))",
            [run],
            |row| row.get(0),
        )
    }

    /// I11: an attempt is begun once, by one life of one node.
    fn take(&mut self, node: &str, instance: &str, claim: &Value, expected: Option<(String, i64)>) {
        self.count("claimed");
        let (run, seq) = (claim["run_id"].as_str().expect("a run").to_owned(), claim["seq"].as_i64().expect("a seq"));
        if let Some(expected) = expected {
            assert_eq!((run.clone(), seq), expected);
        }
        let attempt = claim["attempt"].as_i64().expect("an attempt");
        let by = (node.to_owned(), instance.to_owned());
        let first = self.begun.entry((run, seq, attempt)).or_insert_with(|| by.clone());
        assert_eq!(*first, by, "an attempt was begun twice");
        let taken = Taken { node: node.to_owned(), instance: instance.to_owned(), claim: claim.clone() };
        if !self.taken.iter().any(|known| {
            known.claim["run_id"] == claim["run_id"]
                && known.claim["seq"] == claim["seq"]
                && known.claim["attempt"] == claim["attempt"]
        }) {
            self.taken.push(taken);
        }
    }

    /// I8: a result counts exactly if node, nonce and attempt are the current ones.
    fn report(&mut self) {
        let current: Vec<usize> = (0..self.taken.len()).filter(|&at| self.is_current(&self.taken[at])).collect();
        let at = match (current.is_empty(), self.taken.is_empty()) {
            (_, true) => return,
            (false, false) if self.dice.percent(85) => *self.dice.pick(&current),
            _ => self.dice.below(self.taken.len()),
        };
        let taken = self.taken[at].clone();
        let outcome = match self.dice.below(20) {
            0..12 => json!({"exit_code": 0}),
            12..17 => json!({"exit_code": 1 + self.dice.below(3)}),
            17..19 => json!({"error": "cannot start"}),
            _ => json!({"lost": true}),
        };
        let mut body = crate::support::report(&taken.node, &taken.claim, outcome);
        let mut counts = self.is_current(&taken);
        match self.dice.below(30) {
            0 => (body["nonce"], counts) = (json!("another"), false),
            1 => (body["attempt"], counts) = (json!(taken.claim["attempt"].as_i64().expect("one") + 1), false),
            2 => {
                let other = *self.dice.pick(&AGENTS);
                counts &= other == taken.node;
                body["node_id"] = json!(other);
            }
            _ => {}
        }
        let path = result_path(&taken.claim);
        let kept = self.reports.iter().find(|(known, report, _)| *known == path && *report == body).cloned();
        let query = "SELECT EXISTS (SELECT 1 FROM nodes WHERE node_id = ?1)";
        let is_known: bool = self.lab.row(query, [body["node_id"].as_str()], |row| row.get(0));
        let with_claim = self.dice.percent(30);
        let reply = if with_claim {
            let asked = crate::support::with(body.clone(), "instance", taken.instance.as_str());
            self.post(&format!("{path}?claim=true"), &asked)
        } else {
            self.post(&path, &body)
        };
        let claim = reply.body["claim"].clone();
        if let Some((_, _, answer)) = kept {
            let answered = crate::support::with(reply.body.clone(), "claim", Value::Null);
            assert_eq!((reply.status, &answered), (200, &answer), "an equal report gets the same answer");
            self.count("replayed");
        } else if counts {
            let answer = crate::support::with(reply.expect(200), "claim", Value::Null);
            self.reports.push((path, body, answer));
        } else {
            assert_eq!(reply.status, if is_known { 409 } else { 404 }, "a report that is not current");
        }
        if claim["kind"] == "cleanup" {
            assert_eq!(claim["cleaning"].as_str(), self.order(&taken.node, &taken.instance).as_deref());
        } else if claim.is_object() {
            self.refresh();
            self.take(&taken.node, &taken.instance, &claim, None);
        }
    }

    fn repeat(&mut self) {
        if self.reports.is_empty() {
            return;
        }
        let (path, body, answer) = self.dice.pick(&self.reports).clone();
        let reply = self.post(&path, &body);
        assert_eq!((reply.status, &reply.body), (200, &answer), "an equal report gets the same answer, for ever");
        self.count("replayed");
    }

    fn steps_in(&self, state: &str, kind: &str) -> Vec<(String, i64, i64)> {
        let mut found = Vec::new();
        for (run, seen) in &self.seen {
            for (step, seq) in seen.steps.iter().zip(1i64..) {
                if step.state == state && step.kind == kind {
                    found.push((run.clone(), seq, step.attempt));
                }
            }
        }
        found
    }

    fn answer(&mut self) {
        let asked = self.steps_in("ASKED", "ask");
        if asked.is_empty() {
            return;
        }
        let (run, seq, attempt) = self.dice.pick(&asked).clone();
        let answer = *self.dice.pick(&["yes", "yes", "yes", "no", "perhaps"]);
        let path = format!("/v1/runs/{run}/steps/{seq}/answer");
        let body = json!({"answer": answer, "attempt": attempt});
        let reply = self.post(&path, &body);
        if reply.status == 200 {
            self.count("answered");
            let again = self.post(&path, &body);
            let looped = again.body["code"] == "already-answered";
            assert!(again.status == 200 || looped, "the same answer again: {}", again.body);
        } else {
            reply.problem(422, "not-an-option");
        }
    }

    fn hold(&mut self) {
        let open = self.steps_in("CLAIMED", "hold");
        if !open.is_empty() && self.dice.percent(50) {
            let (run, seq, attempt) = self.dice.pick(&open).clone();
            let path = format!("/v1/runs/{run}/steps/{seq}/result");
            let body = json!({"attempt": attempt, "exit_code": self.dice.below(2)});
            let answer = self.post(&path, &body).expect(200);
            self.reports.push((path, body, answer));
            self.count("hold");
            return;
        }
        let runs: Vec<String> = self.seen.keys().cloned().collect();
        if !runs.is_empty() {
            let run = self.dice.pick(&runs).clone();
            let reply = self.post(&format!("/v1/runs/{run}/renew"), &json!({}));
            assert_eq!(reply.status, if self.seen[&run].ended.is_some() { 409 } else { 200 });
        }
    }

    fn cancel(&mut self) {
        let mut runs: Vec<String> = self.seen.keys().cloned().collect();
        // Rather one that is worked on: then its node settles.
        let worked_on = self.steps_in("CLAIMED", "run");
        if !worked_on.is_empty() && self.dice.percent(70) {
            runs = worked_on.into_iter().map(|(run, ..)| run).collect();
        }
        if !runs.is_empty() {
            let run = self.dice.pick(&runs).clone();
            self.post(&format!("/v1/runs/{run}/cancel"), &json!({"reason": "chance"})).expect(200);
        }
    }

    /// Many at once: the writer is kept busy until all of them wait, so that they share a commit, or as many as the
    /// wakes between them allow. Who is first decides; each must be answered as befits one of the orders.
    fn crowd(&mut self) {
        let busy = self.lab.hold_writer();
        let mut calls = Vec::new();
        for _ in 0..3 + self.dice.below(10) {
            let Some((path, body)) = self.one_of_many() else { continue };
            self.note(format!("with others: POST {path} {body}"));
            let parked = self.lab.park("POST", &path, &body);
            // One after the other, so that the same seed gives much the same order.
            self.lab.get("/v1/runs?limit=1").expect(200);
            calls.push((path, body, parked));
        }
        self.lab.let_wait();
        if calls.iter().filter(|(_, _, parked)| !parked.is_answered()).count() > 1 {
            self.count("together");
        }
        drop(busy);
        for (path, body, parked) in calls {
            let reply = self.lab.join(parked);
            self.note(format!("POST {path} -> {} {}", reply.status, String::from_utf8_lossy(&reply.bytes)));
            self.one_was_answered(&path, &body, &reply);
        }
    }

    /// Something that one of many clients asks for, by what was seen before.
    fn one_of_many(&mut self) -> Option<(String, Value)> {
        let runs: Vec<String> = self.seen.keys().cloned().collect();
        let node = *self.dice.pick(&AGENTS);
        match self.dice.below(20) {
            0..6 => Some(("/v1/runs".to_owned(), self.contract())),
            6..10 => {
                let current: Vec<Taken> = self.taken.iter().filter(|taken| self.is_current(taken)).cloned().collect();
                let taken = (!current.is_empty()).then(|| self.dice.pick(&current).clone())?;
                let outcome = json!({"exit_code": self.dice.below(2)});
                Some((result_path(&taken.claim), crate::support::report(&taken.node, &taken.claim, outcome)))
            }
            10..13 => Some((format!("/v1/nodes/{node}/claim"), json!({"instance": self.instance(node)}))),
            13..15 => {
                let asked = self.steps_in("ASKED", "ask");
                let (run, seq, attempt) = (!asked.is_empty()).then(|| self.dice.pick(&asked).clone())?;
                let answer = *self.dice.pick(&["yes", "yes", "no"]);
                Some((format!("/v1/runs/{run}/steps/{seq}/answer"), json!({"answer": answer, "attempt": attempt})))
            }
            15..17 => {
                let open = self.steps_in("CLAIMED", "hold");
                let (run, seq, attempt) = (!open.is_empty()).then(|| self.dice.pick(&open).clone())?;
                Some((format!("/v1/runs/{run}/steps/{seq}/result"), json!({"attempt": attempt, "exit_code": 0})))
            }
            17 => {
                let run = (!runs.is_empty()).then(|| self.dice.pick(&runs).clone())?;
                Some((format!("/v1/runs/{run}/cancel"), json!({"reason": "chance"})))
            }
            18 => {
                let body = advert(node, &self.instance(node), &capabilities(node, 0));
                Some(("/v1/nodes".to_owned(), crate::support::with(body, "cleans", CLEANED.contains(&node))))
            }
            _ => Some((
                format!("/v1/nodes/{node}/drain"),
                json!({"mode": *self.dice.pick(&["graceful", "at-boundary"])}),
            )),
        }
    }

    fn one_was_answered(&mut self, path: &str, body: &Value, reply: &Reply) {
        let last = path.rsplit('/').next().expect("one at least");
        match (last, reply.status) {
            ("runs", 201 | 202 | 422) => {
                self.acknowledged.insert(reply.body["run_id"].as_str().expect("an id").to_owned());
            }
            ("result", 200) => {
                if !self.reports.iter().any(|(known, report, _)| known == path && report == body) {
                    self.reports.push((path.to_owned(), body.clone(), reply.body.clone()));
                }
            }
            ("claim", 200) if reply.body["kind"] == "cleanup" => {}
            ("claim", 200) => {
                let node = path.split('/').nth(3).expect("a node");
                self.take(node, body["instance"].as_str().expect("a life"), &reply.body, None);
            }
            ("runs", 400) | ("result" | "claim" | "answer" | "drain" | "nodes", 404 | 409) => {}
            ("cancel" | "answer" | "drain" | "nodes", 200) | ("claim", 204) => {}
            (_, other) => panic!("one of many was answered {other}: {path} {body} {}", reply.body),
        }
    }

    fn advertise(&mut self, node: &str, variant: usize) -> Reply {
        let cleans = CLEANED.contains(&node) && (variant == 0 || self.dice.percent(50));
        let body = advert(node, &self.instance(node), &capabilities(node, variant));
        self.post("/v1/nodes", &crate::support::with(body, "cleans", cleans))
    }

    fn advert(&mut self) {
        let node = *self.dice.pick(&AGENTS);
        match self.dice.below(10) {
            0..4 => drop(self.advertise(node, 0)),
            4..6 => {
                let variant = self.dice.below(4);
                self.advertise(node, variant);
            }
            6 => {
                *self.lives.entry(node.to_owned()).or_default() += 1;
                self.advertise(node, 0).expect(200);
                if self.dice.percent(50) {
                    let old = format!("{node}-{}", self.lives[node] - 1);
                    let body = advert(node, &old, &["board"]);
                    // A node that was removed is new to the daemon, and so are its lives.
                    let status = self.post("/v1/nodes", &body).status;
                    if status == 200 {
                        *self.lives.entry(node.to_owned()).or_default() += 1;
                        self.advertise(node, 0).expect(200);
                    } else {
                        assert_eq!(status, 409);
                    }
                }
            }
            _ => {
                let mode = *self.dice.pick(&["", "", "graceful", "at-boundary"]);
                let body = advert(node, &self.instance(node), &capabilities(node, 0));
                self.post("/v1/nodes", &crate::support::with(body, "policy", json!({"drain": mode})));
            }
        }
    }

    fn drain(&mut self) {
        let node = *self.dice.pick(&["b1", "b2", "b3", "h1", "h2", "m1", "s1"]);
        if self.dice.percent(60) {
            for node in [node, *self.dice.pick(&AGENTS), *self.dice.pick(&AGENTS)] {
                let status = self.lab.delete(&format!("/v1/nodes/{node}/drain")).status;
                self.note(format!("undrain {node} -> {status}"));
            }
        } else {
            let mode = *self.dice.pick(&["graceful", "at-boundary"]);
            self.post(&format!("/v1/nodes/{node}/drain"), &json!({"mode": mode, "reason": "chance"}));
        }
    }

    fn static_nodes(&mut self) {
        if self.dice.percent(50) {
            let node = *self.dice.pick(&["s1", "s2"]);
            let body = json!({"node_id": node, "static": true, "capabilities": [{"capability": "plug"}]});
            self.post("/v1/nodes", &body).expect(200);
        } else {
            let node = *self.dice.pick(&["s1", "s2", "b1", "h1"]);
            let reply = self.lab.delete(&format!("/v1/nodes/{node}"));
            self.note(format!("remove {node} -> {}", reply.status));
            assert!(matches!(reply.status, 200 | 404 | 409), "{}", reply.body);
        }
    }

    fn time(&mut self) {
        let seconds = match self.dice.below(10) {
            0..7 => 1 + self.dice.below(25),
            7..9 => 30 + self.dice.below(100),
            _ => 100 + self.dice.below(600),
        };
        let signs = self.dice.percent(85);
        self.note(format!("{seconds} s pass, with signs of life: {signs}"));
        let mut left = seconds;
        while left > 0 {
            let part = if signs { left.min(15) } else { left };
            #[allow(clippy::cast_precision_loss, reason = "small")]
            self.lab.advance(part as f64);
            left -= part;
            if signs {
                for node in AGENTS {
                    if self.knows(node, &self.instance(node)) {
                        self.lab.heartbeat(node);
                    } else {
                        self.advertise(node, 0).expect(200);
                    }
                }
                for node in CLEANED {
                    let instance = self.instance(node);
                    if let Some(order) = self.order(node, &instance).filter(|_| self.dice.percent(50)) {
                        self.clean_up(node, &json!({"cleaning": order}));
                    }
                }
            }
        }
        self.overdue();
    }

    /// What was due has been done: nothing is left behind its deadline.
    fn overdue(&self) {
        let now = self.lab.now();
        let strict = if now >= self.started + 90_000 { now } else { 0 };
        let late: i64 = self.lab.row(
            "SELECT (SELECT count(*) FROM runs WHERE state = 'QUEUED' AND queue_until <= ?1)
                  + (SELECT count(*) FROM runs WHERE state IN ('QUEUED', 'RUNNING') AND holder_until <= ?1)
                  + (SELECT count(*) FROM runs WHERE state = 'RUNNING' AND ends_by <= ?2)
                  + (SELECT count(*) FROM steps WHERE state = 'ASKED' AND deadline <= ?1)
                  + (SELECT count(*) FROM steps WHERE state = 'CLAIMED' AND deadline <= ?2)
                  + (SELECT count(*) FROM leases WHERE reapable = 1 AND not_after <= ?1)
                  + (SELECT count(*) FROM nodes WHERE silent = 0 AND static = 0 AND live_until <= ?1)
                  + (SELECT count(*) FROM nodes WHERE settling_until > 0 AND settling_until <= ?1)",
            (now, strict),
            |row| row.get(0),
        );
        assert_eq!(late, 0, "something is overdue");
    }

    fn restart(&mut self) {
        let seconds = *self.dice.pick(&[0.0, 5.0, 100.0, 1000.0]);
        self.note(format!("restart after {seconds} s"));
        let leases = self.lab.number("SELECT count(*) FROM leases");
        (self.parked, self.waiting) = (None, None);
        self.lab.restart_after(seconds);
        self.started = self.lab.now();
        let promoted = self.lab.number("SELECT count(*) FROM leases");
        assert!(promoted >= leases, "a restart takes no lease away");
        self.lab.settle();
        self.overdue();
    }

    // ---- what must hold

    /// Reads the runs that have not ended, or have since `since`.
    fn read(&self, since: i64) -> BTreeMap<String, RunSeen> {
        let rows = self.lab.rows();
        let mut runs: BTreeMap<String, RunSeen> = BTreeMap::new();
        let wanted = "ended_at IS NULL OR ended_at >= ?1";
        let query = format!("SELECT run_id, state, contract, ended_at || verdict, assigned FROM runs WHERE {wanted}");
        let mut statement = rows.prepare_cached(&query).expect("SQL");
        let mut list = statement.query([since]).expect("rows");
        while let Some(row) = list.next().expect("a row") {
            let ended: Option<String> = row.get(3).expect("a text");
            let assigned: Option<String> = row.get(4).expect("a text");
            let ended = ended.map(|ended| ended + assigned.as_deref().unwrap_or(""));
            let (state, contract) = (row.get(1).expect("a state"), row.get(2).expect("a contract"));
            runs.insert(row.get(0).expect("an id"), RunSeen { state, contract, ended, steps: Vec::new() });
        }
        let query = format!(
            "SELECT run_id, kind, state, attempt, node_id, needs, id, ready, deadline FROM steps
             WHERE run_id IN (SELECT run_id FROM runs WHERE {wanted}) ORDER BY run_id, seq"
        );
        let mut statement = rows.prepare_cached(&query).expect("SQL");
        let mut list = statement.query([since]).expect("rows");
        while let Some(row) = list.next().expect("a row") {
            let run: String = row.get(0).expect("an id");
            let step = StepSeen {
                kind: row.get(1).expect("a kind"),
                state: row.get(2).expect("a state"),
                attempt: row.get(3).expect("a number"),
                node: row.get(4).expect("a node"),
                needs: serde_json::from_str(&row.get::<_, String>(5).expect("a text")).expect("JSON"),
                id: row.get(6).expect("an id"),
                ready: row.get(7).expect("a flag"),
                deadline: row.get(8).expect("a time"),
            };
            runs.get_mut(&run).expect("a step has a run").steps.push(step);
        }
        runs
    }

    fn refresh(&mut self) {
        self.seen.extend(self.read(self.looked));
    }

    fn look(&mut self) {
        // Those that ended long ago are looked at now and then: they must be as they were.
        let all = self.dice.percent(5);
        let now = self.read(if all { 0 } else { self.looked });
        self.looked = self.lab.now();
        assert_eq!(self.lab.wrong(), Vec::<String>::new());
        for run in &self.acknowledged {
            assert!(now.contains_key(run) || (!all && self.seen[run].ended.is_some()), "run {run} is gone");
        }
        for (run, new) in &now {
            let old = self.seen.get(run);
            self.check_run(run, old, new);
            self.check_steps(run, old, new);
        }
        self.seen.extend(now);
    }

    fn check_run(&self, run: &str, old: Option<&RunSeen>, new: &RunSeen) {
        let from = old.map_or("", |old| old.state.as_str());
        let to = new.state.as_str();
        let legal = match from {
            // More than one move may have been made since the last look.
            "" => true,
            "QUEUED" => true,
            "RUNNING" => to != "QUEUED",
            _ => old == Some(new),
        };
        assert!(legal, "run {run} went from {from} to {to}: {old:?} {new:?}");
        assert!(old.is_none_or(|old| old.contract == new.contract), "a contract never changes");
        if from != to {
            match (from, to) {
                ("QUEUED", "RUNNING") => self.count("promoted"),
                (_, "SUCCEEDED") => self.count("succeeded"),
                (_, "FAILED") => self.count("failed"),
                (_, "CANCELLED") => self.count("cancelled"),
                _ => {}
            }
        }
    }

    fn check_steps(&self, run: &str, old: Option<&RunSeen>, new: &RunSeen) {
        let rank = |state: &str| match state {
            "PENDING" => 0,
            "CLAIMED" | "ASKED" => 1,
            _ => 2,
        };
        for (at, step) in new.steps.iter().enumerate() {
            if let Some(was) = old.map(|old| &old.steps[at]) {
                assert!(step.attempt >= was.attempt, "run {run}: an attempt went back: {was:?} {step:?}");
                if step.attempt == was.attempt {
                    let forward = rank(&step.state) > rank(&was.state) || step.state == was.state;
                    assert!(forward, "run {run}: {was:?} became {step:?}");
                }
            }
            let was = old.map(|old| old.steps[at].clone());
            if was.as_ref() != Some(step) {
                match (step.kind.as_str(), step.state.as_str()) {
                    ("acquire", "DONE") => self.count(if step.node.is_some() { "acquired" } else { "not acquired" }),
                    (_, "SKIPPED") => self.count("skipped"),
                    _ if was.is_some_and(|was| was.attempt < step.attempt) => self.count("looped"),
                    _ => {}
                }
            }
        }
        if new.state == "RUNNING" {
            self.check_running(run, new);
        }
    }

    /// A running run is always in somebody's hands: nothing that could begin waits for an event that never comes.
    fn check_running(&self, run: &str, new: &RunSeen) {
        let stopping = self.is_stopping(run);
        let in_hand = new.steps.iter().any(|step| step.state == "CLAIMED");
        if stopping {
            assert!(in_hand, "run {run} is drained at the boundary, has nothing in hand, and goes on: {new:?}");
            return;
        }
        let settling: bool = self.lab.row(
            "SELECT EXISTS (SELECT 1 FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1 AND settling_until > ?2)",
            (run, self.lab.now()),
            |row| row.get(0),
        );
        let mut moves = in_hand;
        for step in &new.steps {
            let ready = step.state == "PENDING" && is_ready(&new.steps, step);
            match step.kind.as_str() {
                "run" if ready => {
                    assert!(step.ready, "run {run}: a command that could begin is not offered: {step:?}");
                    let held: bool = self.lab.row(
                        "SELECT EXISTS (SELECT 1 FROM leases WHERE run_id = ?1 AND node_id = ?2)",
                        (run, &step.node),
                        |row| row.get(0),
                    );
                    assert!(held, "run {run} has a command for a node that it does not hold: {step:?}");
                    moves = true;
                }
                "ask" => {
                    assert!(!ready, "run {run}: a question is not raised: {step:?}");
                    if step.state == "ASKED" {
                        assert!(step.deadline < NEVER);
                        moves = true;
                    }
                }
                "acquire" => assert!(!ready, "run {run}: an acquisition waits: {step:?}"),
                "hold" if ready => {
                    assert!(settling, "run {run}: a hold does not open: {step:?}");
                    self.count("settling");
                    moves = true;
                }
                _ => {}
            }
        }
        assert!(moves, "run {run} is stuck: {new:?}");
        self.check_protection(run, new);
    }

    /// Leases are spared exactly while a hold is open, or a question and no command, or only static nodes are held.
    fn check_protection(&self, run: &str, new: &RunSeen) {
        let is = |kind: &str, state: &str| new.steps.iter().any(|step| step.kind == kind && step.state == state);
        let working = is("run", "CLAIMED") || new.steps.iter().any(|step| step.kind == "run" && step.ready);
        let (agents, spared, all): (i64, i64, i64) = self.lab.row(
            "SELECT count(*) FILTER (WHERE static = 0), count(*) FILTER (WHERE reapable = 0), count(*)
             FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1",
            [run],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        );
        let wanted = is("hold", "CLAIMED") || (is("ask", "ASKED") && !working) || agents == 0;
        assert_eq!(spared, if wanted { all } else { 0 }, "run {run}: leases that are not reaped: {new:?}");
    }

    // ---- the end

    /// Everybody does their work: then every run ends, none waits for ever.
    fn finish(&mut self) {
        self.note("everybody works to the end".to_owned());
        (self.parked, self.waiting) = (None, None);
        for node in ["b1", "b2", "b3", "h1", "h2", "m1", "s1", "s2"] {
            self.lab.delete(&format!("/v1/nodes/{node}/drain"));
        }
        for node in ["s1", "s2"] {
            let body = json!({"node_id": node, "static": true, "capabilities": [{"capability": "plug"}]});
            self.post("/v1/nodes", &body).expect(200);
        }
        for round in 0.. {
            for node in CLEANED {
                self.lab.post(&format!("/v1/nodes/{node}/clean"), &json!({"done": true}));
            }
            for node in AGENTS {
                // A node with everything, so that whatever waits can start.
                self.advertise(node, 3).expect(200);
            }
            self.refresh();
            let open: Vec<String> =
                self.seen.iter().filter(|(_, run)| run.ended.is_none()).map(|(run, _)| run.clone()).collect();
            if open.is_empty() {
                break;
            }
            assert!(
                round < 400,
                "runs that do not end: {:?}",
                Map::from_iter(open.iter().map(|run| { (run.clone(), self.lab.run(run)) }))
            );
            for node in AGENTS {
                let instance = self.instance(node);
                let reply = self.post(&format!("/v1/nodes/{node}/claim"), &json!({"instance": instance}));
                if reply.body["kind"] == "cleanup" {
                    self.clean_up(node, &reply.body);
                } else if reply.status == 200 {
                    self.take(node, &instance, &reply.body, None);
                    let body = crate::support::report(node, &reply.body, json!({"exit_code": 0}));
                    self.post(&result_path(&reply.body), &body).expect(200);
                }
            }
            self.refresh();
            for (run, seq, _) in self.steps_in("ASKED", "ask") {
                self.post(&format!("/v1/runs/{run}/steps/{seq}/answer"), &json!({"answer": "yes"})).expect(200);
            }
            for (run, seq, attempt) in self.steps_in("CLAIMED", "hold") {
                // The answer to a question may have ended it.
                let body = json!({"attempt": attempt, "exit_code": 0});
                self.post(&format!("/v1/runs/{run}/steps/{seq}/result"), &body).expect(200);
            }
            // Runs that wait for nodes that nothing has any more: what they want is known, and absent.
            let stuck = self.stuck();
            for run in stuck {
                self.lab.cancel(&run);
            }
            self.look();
        }
        assert_eq!(self.lab.number("SELECT count(*) FROM leases"), 0, "no run is left, and no lease");
        for (path, body, answer) in self.reports.clone() {
            let reply = self.lab.post(&path, &body);
            if reply.status != 404 {
                assert_eq!((reply.status, &reply.body), (200, &answer), "{path} {body}");
            }
        }
    }

    /// Waiting runs that nothing in this fleet can serve as it is advertised now, when no run is running.
    fn stuck(&self) -> Vec<String> {
        if self.lab.number("SELECT count(*) FROM runs WHERE state = 'RUNNING'") > 0 {
            return Vec::new();
        }
        self.seen.iter().filter(|(_, run)| run.state == "QUEUED").map(|(run, _)| run.clone()).collect()
    }
}

/// A step is ready when all it needs is over.
fn is_ready(steps: &[StepSeen], step: &StepSeen) -> bool {
    step.needs.iter().all(|need| {
        let need = steps.iter().find(|other| other.id == *need).expect("a need is a step");
        matches!(need.state.as_str(), "DONE" | "FAILED" | "SKIPPED")
    })
}
