//! Notifications: written with their event, sent after the commit until they arrive, and slow for nobody else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use mediator::clock::{Ms, boottime_ms};
use mediator::config::{Secret, Webhook};
use mediator::delivery;
use mediator::store::hub::Topic;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::{Daemon, LIMIT_MS, Lab, on_board, wait_for};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The pauses that docs/webhooks.md promises, in seconds.
const PAUSES: [i64; 11] = [5, 30, 120, 600, 1800, 3600, 7200, 14400, 14400, 14400, 28800];

/// What a receiver does with a message.
#[derive(Clone)]
enum Does {
    Answers(u16),
    Redirects(String),
    /// Holds the answer until it is to do something else; then does that.
    Waits,
}

/// A message as it was received.
#[derive(Clone, Debug)]
struct Got {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(own, _)| own == name);
        &found.unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).1
    }

    fn id(&self) -> &str {
        self.header("webhook-id")
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

struct Shared {
    does: Mutex<Does>,
    changed: Condvar,
    got: Mutex<Vec<Got>>,
}

/// Somebody who is told.
struct Receiver {
    url: String,
    shared: Arc<Shared>,
}

impl Receiver {
    fn start(does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/hook?x=1", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared { does: Mutex::new(does), changed: Condvar::new(), got: Mutex::new(Vec::new()) });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Arc::clone(&own);
                std::thread::spawn(move || own.serve(stream));
            }
        });
        Self { url, shared }
    }

    fn now_does(&self, does: Does) {
        *self.shared.does.lock().unwrap() = does;
        self.shared.changed.notify_all();
    }

    fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap().clone()
    }

    fn webhook(&self, name: &str, events: &[&str]) -> Webhook {
        webhook(name, &self.url, events)
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        // Connections are kept open, as receivers do.
        while let Some(got) = read(&mut reader) {
            self.got.lock().unwrap().push(got);
            let mut does = self.does.lock().unwrap();
            while matches!(*does, Does::Waits) {
                does = self.changed.wait(does).unwrap();
            }
            let answer = match &*does {
                Does::Answers(status) => format!("HTTP/1.1 {status} So\r\ncontent-length: 2\r\n\r\nok"),
                Does::Redirects(to) => format!("HTTP/1.1 307 So\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"),
                Does::Waits => unreachable!(),
            };
            drop(does);
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Got> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    assert!(line.starts_with("POST "), "{line}");
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Got { path, headers, body: String::from_utf8(body).ok()? })
}

fn webhook(name: &str, url: &str, events: &[&str]) -> Webhook {
    let events = events.iter().map(|event| (*event).to_owned()).collect();
    Webhook { name: name.to_owned(), url: url.to_owned(), secret: Secret::parse(SECRET).expect("a secret"), events }
}

/// A lab with two boards that need no agent, and with whoever is to be told.
fn lab(webhooks: Vec<Webhook>) -> Lab {
    let lab = Lab::with(|settings| settings.webhooks = webhooks);
    lab.http.rt.spawn(delivery::run(lab.store().clone()));
    lab.static_node("b1", &["board"]);
    lab.static_node("b2", &["board"]);
    lab
}

fn question() -> Value {
    on_board(json!([{"id": "look", "ask": {"prompt": "Is it on?", "timeout_seconds": 9_000_000}}]))
}

/// Lets the lab work until `found` finds something.
#[track_caller]
fn until<T>(lab: &Lab, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = boottime_ms() + LIMIT_MS;
    loop {
        if let Some(found) = found() {
            return found;
        }
        let list = || lab.get("/v1/outbox").body;
        assert!(boottime_ms() < end, "waited in vain: {what}; {}", list());
        lab.http.rt.block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
    }
}

#[track_caller]
fn until_count(lab: &Lab, receiver: &Receiver, count: usize) -> Vec<Got> {
    until(lab, &format!("{count} messages"), || Some(receiver.got()).filter(|got| got.len() >= count))
}

/// Lets time pass for the sender too: by this clock it sleeps, and is not woken by it.
fn advance(lab: &Lab, ms: Ms) {
    lab.clock.advance(Duration::from_millis(ms.unsigned_abs()));
    lab.settle();
    lab.store().hub().tell([Topic::Outbox]);
}

fn in_state(lab: &Lab, state: &str) -> i64 {
    lab.row("SELECT count(*) FROM outbox WHERE state = ?1", [state], |row| row.get(0))
}

fn check_signature(got: &Got) {
    let secret = BASE64_STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    mac.update(format!("{}.{}.{}", got.id(), got.header("webhook-timestamp"), got.body).as_bytes());
    let wanted = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(got.header("webhook-signature"), wanted);
}

#[test]
fn a_message_is_signed_and_tells_the_event_in_order() {
    let receiver = Receiver::start(Does::Answers(204));
    let events = ["run.queued", "run.started", "run.ended", "ask.raised", "step.cancelled"];
    let lab = lab(vec![receiver.webhook("all", &events)]);
    let first = lab.placed(&question());
    let second = lab.placed(&question());
    let third = lab.queued(&question());
    lab.answer(&first, 1, "yes").expect(200);
    lab.cancel(&second);
    let got = until_count(&lab, &receiver, 10);
    let told: Vec<(String, String)> = got
        .iter()
        .map(|got| {
            (got.json()["type"].as_str().unwrap().to_owned(), got.json()["data"]["run_id"].as_str().unwrap().to_owned())
        })
        .collect();
    let pair = |event: &str, run: &str| (event.to_owned(), run.to_owned());
    for wanted in [
        pair("run.started", &first),
        pair("ask.raised", &first),
        pair("run.queued", &third),
        pair("run.ended", &first),
        pair("run.started", &third),
        pair("step.cancelled", &second),
        pair("run.ended", &second),
    ] {
        assert_eq!(told.iter().filter(|own| **own == wanted).count(), 1, "{wanted:?} in {told:?}");
    }
    let mut ids: Vec<&str> = got.iter().map(Got::id).collect();
    let mut statement = lab.rows().prepare("SELECT message_id FROM outbox ORDER BY id").unwrap();
    let rows: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(ids, rows, "in the order of the events");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), got.len(), "each has an id of its own");
    for got in &got {
        check_signature(got);
        assert_eq!((got.path.as_str(), got.header("content-type")), ("/hook?x=1", "application/json"));
        assert!(got.id().starts_with("msg_"));
        assert_eq!(got.header("webhook-timestamp"), "1800000000", "the lab's clock stands still");
        assert_eq!(got.json()["timestamp"], "2027-01-15T08:00:00.000Z");
    }
    until(&lab, "all are marked", || (in_state(&lab, "delivered") == 10).then_some(()));
    let list = lab.get("/v1/outbox?state=delivered").expect(200);
    assert_eq!(list["outbox"].as_array().unwrap().len(), 10);
    assert_eq!(list["outbox"][9]["message_id"], rows[0].as_str(), "newest first");
    assert_eq!((&list["outbox"][0]["attempts"], &list["outbox"][0]["next_at"]), (&json!(1), &Value::Null));
}

/// A retried submission tells nobody twice: the notification is of the effect, and there is one.
#[test]
fn a_replay_notifies_nobody() {
    let receiver = Receiver::start(Does::Answers(200));
    let lab = lab(vec![receiver.webhook("all", &["run.started"])]);
    for _ in 0..5 {
        lab.keyed("POST", "/v1/runs", "k", &question()).expect(201);
    }
    lab.submit(&json!({"steps": 7})).problem(400, "invalid-contract");
    lab.post("/v1/runs?dry_run=true", &question()).expect(200);
    until(&lab, "it is delivered", || (in_state(&lab, "delivered") == 1).then_some(()));
    assert_eq!((receiver.got().len(), lab.number("SELECT count(*) FROM outbox")), (1, 1));
}

/// "retried with growing delays and jitter up to a limit, then kept as failed and visible", and sent again by hand.
#[test]
fn what_is_not_delivered_is_tried_for_a_day_then_kept_and_can_be_sent_again() {
    let receiver = Receiver::start(Does::Answers(500));
    let lab = lab(vec![receiver.webhook("r", &["run.started"])]);
    lab.placed(&question());
    let row = |lab: &Lab| {
        lab.row("SELECT state, attempts, next_at FROM outbox", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, Ms>(2)?))
        })
    };
    for (number, pause) in PAUSES.into_iter().enumerate() {
        let attempts = i64::try_from(number).unwrap() + 1;
        let next_at =
            until(&lab, "an attempt is marked", || Some(row(&lab)).filter(|row| row.1 == attempts).map(|row| row.2));
        let after = next_at - lab.now();
        assert!((pause * 1000..=pause * 1250).contains(&after), "attempt {attempts}: {after} ms after, for {pause} s");
        assert_eq!(receiver.got().len(), number + 1);
        // Not a moment sooner.
        advance(&lab, after - 1);
        lab.quiesce();
        assert_eq!((receiver.got().len(), row(&lab).1), (number + 1, attempts));
        let pending = lab.get("/v1/outbox?state=pending").expect(200);
        assert_eq!(pending["outbox"][0]["last_error"], "it answered 500 Internal Server Error");
        advance(&lab, 1);
    }
    until(&lab, "it is given up", || (row(&lab).0 == "failed").then_some(()));
    advance(&lab, 10 * 86_400_000);
    lab.quiesce();
    let got = receiver.got();
    assert_eq!(got.len(), PAUSES.len() + 1);
    assert!(got.iter().all(|other| other.id() == got[0].id() && other.body == got[0].body), "one message, one id");
    let mut times: Vec<&str> = got.iter().map(|got| got.header("webhook-timestamp")).collect();
    times.dedup();
    assert_eq!(times.len(), got.len(), "each attempt has its own time");
    got.iter().for_each(check_signature);

    let failed = lab.get("/v1/outbox?state=failed").expect(200)["outbox"][0].clone();
    assert_eq!((&failed["attempts"], &failed["next_at"]), (&json!(12), &Value::Null));
    assert!(!failed["ended_at"].is_null() && failed["message_id"] == got[0].id(), "{failed}");
    receiver.now_does(Does::Answers(202));
    let path = format!("/v1/outbox/{}/resend", failed["id"]);
    let again = lab.keyed("POST", &path, "again", &json!({})).expect(200);
    assert_eq!((again["state"].as_str(), &again["attempts"]), (Some("pending"), &json!(0)));
    until(&lab, "it is delivered", || (row(&lab).0 == "delivered").then_some(()));
    lab.keyed("POST", &path, "again", &json!({})).expect(200);
    lab.quiesce();
    let got = receiver.got();
    assert_eq!(got.len(), PAUSES.len() + 2, "a repeated request sends it once");
    assert_eq!(got[0].id(), got.last().unwrap().id(), "the receiver can tell that it is the same");
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start(Does::Answers(200));
    let receiver = Receiver::start(Does::Redirects(elsewhere.url.clone()));
    let lab = lab(vec![receiver.webhook("r", &["run.started"])]);
    lab.placed(&question());
    let error = until(&lab, "an attempt", || {
        lab.row("SELECT last_error FROM outbox", [], |row| row.get::<_, Option<String>>(0))
    });
    assert_eq!(error, "it answered 307 Temporary Redirect");
    assert_eq!((receiver.got().len(), elsewhere.got().len(), in_state(&lab, "pending")), (1, 0, 1));
}

/// "A receiver that is slow or down delays nothing else."
#[test]
fn a_slow_receiver_and_one_that_is_down_delay_nobody() {
    let slow = Receiver::start(Does::Waits);
    let quick = Receiver::start(Does::Answers(200));
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let down = format!("http://{}/", nobody.local_addr().expect("an address"));
    drop(nobody);
    let events = ["run.started", "run.ended"];
    let lab =
        lab(vec![slow.webhook("slow", &events), webhook("down", &down, &events), quick.webhook("quick", &events)]);
    for number in 0..40 {
        let began = boottime_ms();
        let run = lab.placed(&question());
        lab.cancel(&run);
        // Far more than a busy machine needs, and far below any time-out of the sender.
        let took = boottime_ms() - began;
        assert!(took < 5_000, "submission {number} took {took} ms");
    }
    until_count(&lab, &quick, 80);
    assert_eq!(slow.got().len(), 1, "one message under way to each");
    let of = |name: &str, state: &str| {
        lab.row("SELECT count(*) FROM outbox WHERE webhook = ?1 AND state = ?2", [name, state], |row| {
            row.get::<_, i64>(0)
        })
    };
    until(&lab, "the quick one has all", || (of("quick", "delivered") == 80).then_some(()));
    assert_eq!((of("down", "pending"), of("slow", "pending")), (80, 80));
    until(&lab, "each was tried", || {
        let untried = "SELECT count(*) FROM outbox WHERE webhook = 'down' AND attempts = 0";
        (lab.number(untried) == 0).then_some(())
    });
    slow.now_does(Does::Answers(200));
    until(&lab, "the slow one has all", || (of("slow", "delivered") == 80).then_some(()));
    let mut ids: Vec<String> = slow.got().iter().map(|got| got.id().to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), slow.got().len()), (80, 80), "each once");
}

fn settings(receiver: &Receiver) -> String {
    format!(
        "[[webhook]]\nname = \"r\"\nurl = \"{}\"\nsecret = \"{SECRET}\"\nevents = [\"run.started\"]\n",
        receiver.url
    )
}

/// "A crash between sending and marking sends again with the same id."
#[test]
fn a_kill_between_sending_and_marking_sends_again_with_the_same_id() {
    let receiver = Receiver::start(Does::Waits);
    let mut daemon = Daemon::with(&settings(&receiver));
    let node = json!({"node_id": "b1", "static": true, "capabilities": [{"capability": "board"}]});
    daemon.call("POST", "/v1/nodes", &node).expect(200);
    daemon.call("POST", "/v1/runs", &question()).expect(201);
    let got = |count: usize| wait_for("a message", || Some(receiver.got()).filter(|got| got.len() >= count));
    got(1);
    // It has the message, and its answer never arrives: the daemon cannot know.
    daemon.kill();
    daemon.start_again();
    got(2);
    receiver.now_does(Does::Answers(200));
    let rows = daemon.rows();
    wait_for("it is marked", || {
        let state: String = rows.query_row("SELECT state FROM outbox", [], |row| row.get(0)).expect("one row");
        (state == "delivered").then_some(())
    });
    daemon.kill();
    daemon.start_again();
    daemon.call("GET", "/readyz", &Value::Null).expect(200);
    let got = receiver.got();
    assert_eq!(got.len(), 2, "what is delivered is not sent again");
    assert_eq!((got[0].id(), &got[0].body), (got[1].id(), &got[1].body));
    got.iter().for_each(check_signature);
}
