//! Designs that are wrong, each on a scratch database: what the daemon does not do, and why not.

use std::path::Path;
use std::process::{Command, Stdio};

use rusqlite::{Connection, TransactionBehavior};

use crate::Page;
use crate::support::wait_for;

const SCHEMA: &str = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload TEXT NOT NULL);
     CREATE TABLE requests (id TEXT PRIMARY KEY, job INTEGER NOT NULL);";

fn create(path: &Path, schema: &str) -> Connection {
    let db = Connection::open(path).expect("a database");
    db.execute_batch(schema).expect("a schema");
    db
}

/// (jobs, completion records), as a process that starts now would find them.
fn counts(path: &Path) -> (i64, i64) {
    let db = Connection::open(path).expect("a database");
    db.query_row("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM requests)", [], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
    .expect("two numbers")
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// Adds a line to the file that stands for everybody's mailbox: what was sent cannot be rolled back.
fn mail(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a mailbox");
    writeln!(file, "your job was taken").expect("there is room");
}

fn insert_job(db: &Connection) -> i64 {
    db.execute("INSERT INTO jobs (payload) VALUES ('report')", []).expect("a job");
    db.last_insert_rowid()
}

/// Looks the record up and does what is missing, in one transaction; a mail goes out before or after the commit.
/// Stops for ever at `moment`, where it is to be killed; with an empty one it gets through.
fn submit(path: &Path, moment: &str) {
    let mut db = Connection::open(path).expect("a database");
    let mailbox = path.with_extension("mail");
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction");
    let is_known = tx.query_row("SELECT count(*) FROM requests", [], |row| row.get::<_, i64>(0)).expect("a number") > 0;
    if is_known {
        return;
    }
    let job = insert_job(&tx);
    tx.execute("INSERT INTO requests VALUES ('request-7', ?1)", [job]).expect("a record");
    if moment.starts_with("mail before") {
        mail(&mailbox);
        wait_at("mail before, killed before the commit", moment, path);
    }
    tx.commit().expect("a commit");
    if moment.starts_with("mail after") {
        wait_at("mail after, killed after the commit", moment, path);
        mail(&mailbox);
    }
}

/// Tells that the moment has come, and waits to be killed.
fn wait_at(here: &str, moment: &str, path: &Path) {
    if here == moment {
        std::fs::write(path.with_extension("ready"), "").expect("there is room");
        loop {
            std::thread::park();
        }
    }
}

/// What the process does that is to be killed.
pub fn work(path: &Path, moment: &str) -> ! {
    if moment == "effect first" {
        // Wrong: the effect is committed alone, and the record of it would come later.
        let db = Connection::open(path).expect("a database");
        insert_job(&db);
        wait_at("effect first", moment, path);
    }
    submit(path, moment);
    unreachable!("{moment}: it was to be killed")
}

/// Does it in a process that is killed at `moment`.
fn kill_at(path: &Path, moment: &str) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .arg("worker")
        .args([path.as_os_str(), moment.as_ref()])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for("the moment", || path.with_extension("ready").exists().then_some(()));
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
}

/// The effect first, its completion record later.
pub fn effect_first(page: &mut Page) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("effect-first.db");
    drop(create(&path, SCHEMA));
    let mut rows = Vec::new();
    let mut look = |when: &str| {
        let (jobs, records) = counts(&path);
        rows.push(vec![when.to_owned(), jobs.to_string(), records.to_string()]);
    };
    look("before");
    kill_at(&path, "effect first");
    look("right after the kill");
    look("after the restart");
    submit(&path, "");
    look("after the retry");
    page.table(
        "Wrong: the effect first, the completion record later",
        &["", "jobs", "completion records"],
        &rows,
        "The effect was committed alone: after the kill nothing tells that it was done, and the retry does it again.",
    );
}

/// The look-up outside the transaction, by two requests at once.
pub fn checked_outside(page: &mut Page) {
    let mut rows = Vec::new();
    for (kind, schema) in [
        ("without a primary key", SCHEMA.replace(" PRIMARY KEY, job", ", job")),
        ("with the primary key", SCHEMA.to_owned()),
    ] {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("outside.db");
        drop(create(&path, &schema));
        let mut both = [Connection::open(&path).expect("a database"), Connection::open(&path).expect("a database")];
        // Both look before either writes: the worst order, made certain.
        let is_known = both.each_ref().map(|db| {
            db.query_row("SELECT count(*) FROM requests WHERE id = 'request-7'", [], |row| row.get::<_, i64>(0))
                .expect("a number")
                > 0
        });
        assert_eq!(is_known, [false, false]);
        let answers = both.each_mut().map(|db| {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction");
            let job = insert_job(&tx);
            match tx.execute("INSERT INTO requests VALUES ('request-7', ?1)", [job]) {
                Ok(_) => {
                    tx.commit().expect("a commit");
                    format!("job {job}")
                }
                // Dropped here, the transaction is rolled back, and the job with it.
                Err(error) => error.sqlite_error_code().map_or("?".to_owned(), |code| format!("{code:?}")),
            }
        });
        let (jobs, records) = counts(&path);
        let [first, second] = answers;
        rows.push(vec![kind.to_owned(), first, second, jobs.to_string(), records.to_string()]);
    }
    page.table(
        "Wrong: the look-up outside the transaction, two requests at once",
        &["", "first", "second", "jobs", "completion records"],
        &rows,
        "Both found nothing and both went on; the key turns the second effect into an error, which its client must ask \
         again about, but it does not give the second the first one's answer.",
    );
}

/// A mail just before, or just after, the commit.
pub fn mailed(page: &mut Page) {
    let mut rows = Vec::new();
    for (kind, moment) in [
        ("mail, kill, no commit", "mail before, killed before the commit"),
        ("commit, kill, no mail", "mail after, killed after the commit"),
    ] {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("mail.db");
        drop(create(&path, SCHEMA));
        kill_at(&path, moment);
        let look = || [counts(&path).0.to_string(), lines(&path.with_extension("mail")).to_string()];
        let killed = look();
        // The same order again, to the end.
        submit(&path, moment.split_once(',').expect("a comma").0);
        rows.push([vec![kind.to_owned()], killed.to_vec(), look().to_vec()].concat());
    }
    page.table(
        "Wrong: a mail beside the transaction",
        &["", "jobs after the kill", "mails", "jobs after the retry", "mails"],
        &rows,
        "Sent before the commit it tells of work that is not there, and twice of the same; sent after it, it may never \
         be sent, since the retry finds everything done.",
    );
}
