//! `mediator cancel`: runs that are named, or all that fit some filters.
//!
//! With filters the daemon is asked twice, first for the runs that wait, then for those that run: a run moves in that
//! direction alone, so none slips through between, and what has ended, however much of it is kept, is not looked at. The
//! name is compared here: it is no filter of the daemon's, and what has not ended is never much.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use serde_json::{Value, json};

use super::out::Table;
use super::wire::{self, Run};
use super::{Context, Exit, Stop, lists, out, text};
use crate::client::encode;

/// How many runs are shown before it is asked.
const SHOWN: usize = 10;

/// Flags of `mediator cancel`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The runs
    #[arg(value_name = "RUN", required_unless_present = "filters", conflicts_with = "filters")]
    run_ids: Vec<String>,
    #[command(flatten)]
    filters: Filters,
    /// Why; it is kept with the runs
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask before all that fit are cancelled
    #[arg(long)]
    yes: bool,
}

/// Which runs; all of what is given must fit.
#[derive(clap::Args, Debug)]
#[group(id = "filters", multiple = true)]
struct Filters {
    /// All runs in this state: queued or running
    #[arg(long, ignore_case = true, value_parser = ["queued", "running"])]
    state: Option<String>,
    /// All runs of this principal
    #[arg(long)]
    principal: Option<String>,
    /// All runs of this work
    #[arg(long)]
    work: Option<String>,
    /// All runs that have, or had, this node
    #[arg(long)]
    node: Option<String>,
    /// All runs that are called so
    #[arg(long)]
    name: Option<String>,
}

/// Cancels runs, all of them even if one is refused.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let several = args.run_ids.len() != 1;
    if context.key.is_some() && several {
        return Err(Stop::new(Exit::Usage, "--idempotency-key is for one request: cancel one run with it"));
    }
    if args.run_ids.is_empty() {
        return all_that_fit(args, context).await;
    }
    let mut refused = None;
    for run_id in &args.run_ids {
        let path = format!("/v1/runs/{}/cancel", encode(run_id));
        match context.post(&path, &json!({ "reason": args.reason })).await {
            Ok(answer) if context.json => out::raw_json(&answer.body)?,
            Ok(answer) => {
                let run: Run = wire::read(&answer)?;
                out::line(&format!("run {} {}", run.run_id, text::run_state(&run)))?;
            }
            Err(stop) if stop.exit == Exit::Refused && several => {
                out::note(&format!("{run_id}: {}", stop.messages.join("; ")));
                refused = Some(Exit::Refused);
            }
            Err(stop) => return Err(stop),
        }
    }
    Ok(refused.unwrap_or(Exit::Done))
}

async fn all_that_fit(args: Args, context: &Context) -> Result<Exit, Stop> {
    let found = find(&args.filters, context).await?;
    if found.count() == 0 {
        if context.json {
            Outcome::default().print_json(0)?;
        } else {
            out::line("nothing to cancel: no run that has not ended fits")?;
        }
        return Ok(Exit::Done);
    }
    if !args.yes {
        found.show();
        if !out::can_ask() {
            let what = format!("{} would be cancelled; no terminal to ask on: say --yes", found.sentence());
            return Err(Stop::new(Exit::Usage, what));
        }
        if !out::confirm(&format!("cancel {}?", found.sentence()))? {
            return Err(Stop::new(Exit::Failed, "nothing was cancelled"));
        }
    }
    let matched = found.count();
    // Those that wait go first: otherwise what is freed would start some of them, only to be cancelled then.
    let waiting_alone = args.filters.state.is_some_and(|state| state.eq_ignore_ascii_case("queued"));
    let only_while = waiting_alone.then_some("QUEUED");
    let outcome = RefCell::new(Outcome::default());
    cancel_each(found.queued, &json!({"reason": args.reason, "while": only_while}), context, &outcome).await;
    cancel_each(found.running, &json!({"reason": args.reason}), context, &outcome).await;
    let outcome = outcome.into_inner();
    if context.json {
        outcome.print_json(matched)?;
    } else {
        out::line(&outcome.sentence(matched))?;
    }
    match outcome.stopped {
        Some(stop) => Err(stop),
        None if outcome.refused.is_empty() => Ok(Exit::Done),
        None => Ok(Exit::Refused),
    }
}

/// The runs that fit.
#[derive(Default)]
struct Found {
    queued: VecDeque<String>,
    running: VecDeque<String>,
    first: Vec<Run>,
}

impl Found {
    fn count(&self) -> usize {
        self.queued.len() + self.running.len()
    }

    fn sentence(&self) -> String {
        format!("{} ({} waiting, {} running)", counted(self.count()), self.queued.len(), self.running.len())
    }

    fn show(&self) {
        let mut table = Table::new(&["RUN", "STATE", "NAME", "BY", "WORK", "AGE"]);
        for run in &self.first {
            let of = |text: &String| text.clone();
            let age = text::age(&run.created_at);
            table.row([of(&run.run_id), of(&run.state), of(&run.name), of(&run.principal), of(&run.work), age]);
        }
        for line in table.lines() {
            out::aside(&line);
        }
        if self.count() > self.first.len() {
            out::aside(&format!("... and {} more", self.count() - self.first.len()));
        }
    }
}

/// Finds the runs that have not ended and fit. Of each page only the ids are kept.
async fn find(filters: &Filters, context: &Context) -> Result<Found, Stop> {
    let mut found = Found::default();
    let mut known = HashSet::new();
    for state in ["QUEUED", "RUNNING"] {
        if filters.state.as_ref().is_some_and(|wanted| !wanted.eq_ignore_ascii_case(state)) {
            continue;
        }
        let query = lists::query(&[
            ("state", Some(state.to_owned())),
            ("principal", filters.principal.clone()),
            ("work", filters.work.clone()),
            ("node", filters.node.clone()),
        ]);
        let mut cursor = None;
        loop {
            let page = lists::fetch_page(context, "/v1/runs", "runs", &query, lists::PAGE, cursor.as_deref()).await?;
            cursor = page.next.clone();
            for run in page.read::<Run>()? {
                // One that has started since the first question is in both lists.
                let fits = filters.name.as_ref().is_none_or(|name| *name == run.name);
                if fits && known.insert(run.run_id.clone()) {
                    if state == "QUEUED" { &mut found.queued } else { &mut found.running }
                        .push_back(run.run_id.clone());
                    if found.first.len() < SHOWN {
                        found.first.push(run);
                    }
                }
            }
            if cursor.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// What became of them.
#[derive(Default)]
struct Outcome {
    cancelled: Vec<String>,
    /// Had ended before.
    ended: Vec<String>,
    /// Had started, and only those that wait were meant.
    started: Vec<String>,
    refused: Vec<Value>,
    /// Why the rest was not tried.
    stopped: Option<Stop>,
}

/// Cancels each, eight at a time: they share commits.
async fn cancel_each(ids: VecDeque<String>, body: &Value, context: &Context, outcome: &RefCell<Outcome>) {
    let left = RefCell::new(ids);
    let work = || async {
        while outcome.borrow().stopped.is_none() {
            let Some(id) = left.borrow_mut().pop_front() else { return };
            let answer = context.post(&format!("/v1/runs/{}/cancel", encode(&id)), body).await;
            outcome.borrow_mut().note(id, answer);
        }
    };
    tokio::join!(work(), work(), work(), work(), work(), work(), work(), work());
}

impl Outcome {
    fn note(&mut self, id: String, answer: Result<crate::client::Answer, Stop>) {
        let read = answer.and_then(|answer| {
            // The daemon keeps the answer to what had an effect, and tells until when.
            let acted = answer.headers.contains_key("idempotency-expires");
            Ok((acted, wire::read::<Run>(&answer).map_err(Stop::from)?))
        });
        match read {
            Ok((true, _)) => self.cancelled.push(id),
            Ok((false, run)) if run.has_ended() => self.ended.push(id),
            Ok((false, _)) => self.started.push(id),
            Err(stop) if stop.exit != Exit::Refused => self.stopped = self.stopped.take().or(Some(stop)),
            Err(stop) => match stop.problem {
                // It had ended so long ago that it was forgotten meanwhile.
                Some(problem) if problem.code == "gone" => self.ended.push(id),
                problem => {
                    out::note(&format!("{id}: {}", stop.messages.join("; ")));
                    self.refused.push(json!({"run_id": id, "problem": problem.map(|problem| problem.body)}));
                }
            },
        }
    }

    fn sentence(&self, matched: usize) -> String {
        let mut text = format!("cancelled {} of {}", self.cancelled.len(), counted(matched));
        let tried = self.cancelled.len() + self.ended.len() + self.started.len() + self.refused.len();
        for (count, what) in [
            (self.ended.len(), "had ended"),
            (self.started.len(), "had started and went on"),
            (self.refused.len(), "refused"),
            (matched - tried, "not tried, or unknown"),
        ] {
            if count > 0 {
                text.push_str(&format!("; {count} {what}"));
            }
        }
        text
    }

    fn print_json(&self, matched: usize) -> Result<(), Stop> {
        let (cancelled, ended, started) = (&self.cancelled, &self.ended, &self.started);
        out::json(&json!({
            "matched": matched, "cancelled": cancelled, "ended": ended, "started": started, "refused": self.refused,
        }))?;
        Ok(())
    }
}

fn counted(runs: usize) -> String {
    if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") }
}
