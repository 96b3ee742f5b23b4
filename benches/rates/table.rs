//! The table that is printed, and the arithmetic of rounds.

use std::time::Duration;

/// What is wanted of a row's ratio, or of its figure.
#[derive(Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Shown for comparison only.
    None,
}

struct Row {
    name: String,
    figure: String,
    compared: String,
    value: String,
    target: String,
    verdict: &'static str,
}

#[derive(Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// Adds a row whose `ratio` is judged.
    pub fn ratio(&mut self, name: &str, figure: String, compared: String, ratio: f64, target: Target) {
        let (text, verdict) = match target {
            Target::AtMost(most) => (format!("at most {most}"), judge(ratio <= most)),
            Target::AtLeast(least) => (format!("at least {least}"), judge(ratio >= least)),
            Target::None => ("-".to_owned(), ""),
        };
        self.add(Row { name: name.to_owned(), figure, compared, value: format!("{ratio:.2}"), target: text, verdict });
    }

    /// Adds a row whose figure itself is judged; `unit` goes behind both.
    pub fn figure(&mut self, name: &str, figure: f64, unit: &str, most: f64) {
        let target = format!("under {most} {unit}");
        let (figure, verdict) = (format!("{figure:.2} {unit}"), judge(figure < most));
        self.add(Row { name: name.to_owned(), figure, compared: "-".into(), value: "-".into(), target, verdict });
    }

    fn add(&mut self, row: Row) {
        eprintln!("  {}: {} / {} = {} ({}) {}", row.name, row.figure, row.compared, row.value, row.target, row.verdict);
        self.0.push(row);
    }

    /// Prints everything as a table in Markdown, so that it can go into a document as it is.
    pub fn print(&self, quick: bool, took: Duration) {
        let header = ["row", "figure", "compared with", "ratio", "target", ""].map(str::to_owned);
        let rows = self.0.iter().map(|row| {
            let own = [&row.name, &row.figure, &row.compared, &row.value, &row.target];
            let [name, figure, compared, value, target] = own.map(String::clone);
            [name, figure, compared, value, target, row.verdict.to_owned()]
        });
        let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
        let widths: Vec<usize> =
            (0..6).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
        let line = |row: &[String; 6]| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            println!("| {} |", cells.join(" | "));
        };
        line(&rows[0]);
        println!("|{}|", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|"));
        rows[1..].iter().for_each(line);
        let missed = self.0.iter().filter(|row| row.verdict == "missed").count();
        let judged = self.0.iter().filter(|row| !row.verdict.is_empty()).count();
        let how = if quick { ", QUICK: too few rounds to be quoted" } else { "" };
        println!("\n{} of {judged} targets met, in {:.0} s{how}", judged - missed, took.as_secs_f64());
    }
}

fn judge(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// The rounds of two things that were measured in turns.
#[derive(Default)]
pub struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    pub fn push(&mut self, own: f64, other: f64) {
        self.0.push((own, other));
    }

    pub fn own(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.0).collect())
    }

    pub fn other(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.1).collect())
    }

    /// The median of the rounds' ratios: each compares what was measured one after the other.
    pub fn ratio(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.0 / pair.1).collect())
    }
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub fn per_second(rate: f64) -> String {
    format!("{rate:.0}/s")
}

pub fn ms(time: f64) -> String {
    if time < 10.0 { format!("{time:.3} ms") } else { format!("{time:.1} ms") }
}
