//! Sentences and short forms that several commands share, and the little languages of their flags.

use serde_json::{Map, Value, json};

use super::wire::{Assigned, Capability, Reject, Run, StepResult};
use crate::client::Problem;
use crate::clock::{Clock, parse_rfc3339, rfc3339};

/// Returns `dut=board-1 host=build-2,build-3`.
pub fn placement(assigned: &[Assigned]) -> String {
    let role = |role: &Assigned| {
        let nodes: Vec<&str> = role.nodes.iter().map(|node| node.node_id.as_str()).collect();
        format!("{}={}", role.r#as, nodes.join(","))
    };
    assigned.iter().map(role).collect::<Vec<_>>().join(" ")
}

/// Returns what a run is doing, to go behind "run r-1 ".
pub fn run_state(run: &Run) -> String {
    match run.state.as_str() {
        "QUEUED" => match run.queue.position {
            Some(position) => format!("is QUEUED at position {position}"),
            None => "is QUEUED".to_owned(),
        },
        "RUNNING" if !run.assigned.is_empty() => format!("is RUNNING on {}", placement(&run.assigned)),
        "SUCCEEDED" => "SUCCEEDED".to_owned(),
        state if run.has_ended() => match verdict(run) {
            text if text.is_empty() => state.to_owned(),
            text => format!("{state}: {text}"),
        },
        state => format!("is {state}"),
    }
}

/// Returns why a run ended, e.g. `step-failed: step build on board-1: exit code 2`; empty before its end.
pub fn verdict(run: &Run) -> String {
    let Some(verdict) = &run.verdict else { return String::new() };
    let mut text = verdict.kind.clone();
    if !verdict.step.is_empty() {
        text.push_str(&format!(", step {}", verdict.step));
    }
    if !verdict.node.is_empty() {
        text.push_str(&format!(" on {}", verdict.node));
    }
    if !verdict.detail.is_empty() {
        text.push_str(&format!(": {}", verdict.detail));
    }
    text
}

/// Returns what came out of a step, in a few words.
pub fn step_result(result: &StepResult) -> String {
    if let Some(code) = result.exit_code {
        format!("exit code {code}")
    } else if let Some(error) = &result.error {
        error.clone()
    } else if let Some(answer) = &result.answer {
        format!("'{answer}' by {}", result.by)
    } else {
        match result.acquired {
            Some(true) => format!("got {}", result.node_id),
            Some(false) => "not to be had".to_owned(),
            None => String::new(),
        }
    }
}

/// Returns a capability as the flags write it: `board,model=rpi4`.
pub fn capability(entry: &Capability) -> String {
    let mut text = entry.capability.clone();
    for (key, value) in &entry.attrs {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!(",{key}={value}"));
    }
    text
}

/// Reads `board,model=rpi4` into `{capability, attrs}`. Values stay text: attributes are compared by their text.
pub fn parse_capability(text: &str) -> Result<Map<String, Value>, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    if name.is_empty() || name.contains('=') {
        return Err(format!("'{text}' does not start with a capability: expected CAPABILITY[,KEY=VALUE..]"));
    }
    let mut attrs = Map::new();
    for part in parts {
        let (key, value) = parse_pair(part)?;
        if attrs.insert(key.clone(), value.into()).is_some() {
            return Err(format!("'{key}' is given twice"));
        }
    }
    let mut entry = Map::new();
    entry.insert("capability".to_owned(), name.into());
    if !attrs.is_empty() {
        entry.insert("attrs".to_owned(), attrs.into());
    }
    Ok(entry)
}

/// Reads `KEY=VALUE`.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// Reads a number of seconds above 0, fractions allowed.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // An upper bound, so that it can always be waited for: some 31 years.
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(seconds),
        _ => Err("expected seconds, above 0".to_owned()),
    }
}

/// Reads a time in the past: RFC 3339, or an age such as `90s`, `30m`, `6h`, `7d`.
pub fn parse_since(text: &str) -> Result<String, String> {
    if parse_rfc3339(text).is_some() {
        return Ok(text.to_owned());
    }
    let wrong = || format!("'{text}' is neither a time (2026-01-31T12:00:00Z) nor an age (90s, 30m, 6h, 7d)");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let unit_ms: i64 = match unit {
        's' => 1000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return Err(wrong()),
    };
    let count: i64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let age_ms = count.checked_mul(unit_ms).filter(|&age| age >= 0).ok_or_else(wrong)?;
    Ok(rfc3339(Clock::system().now().saturating_sub(age_ms), 0))
}

/// Returns how long ago a time of the wire was, e.g. `5 min`; empty if there is none.
pub fn age(at: &str) -> String {
    parse_rfc3339(at).map(|at| span(Clock::system().now() - at)).unwrap_or_default()
}

/// Returns the time between two times of the wire, up to now if there is no second; empty if there is no first.
pub fn lasted(from: &str, to: &str) -> String {
    let Some(from) = parse_rfc3339(from) else { return String::new() };
    span(parse_rfc3339(to).unwrap_or_else(|| Clock::system().now()) - from)
}

/// Returns milliseconds in the largest unit that gives at least two of it. Clocks differ a little: negative is 0.
pub fn span(ms: i64) -> String {
    match ms.max(0) / 1000 {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s if s < 2 * 86_400 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// Returns what goes below a refusal: its numbers, and what to do next.
pub fn refusal_details(problem: &Problem) -> Vec<String> {
    let mut lines = Vec::new();
    if let Ok(reject) = serde_json::from_value::<Reject>(problem.body["reject"].clone())
        && let (Some(wanted), Some(known)) = (reject.wanted, reject.known)
    {
        lines.push(format!("role '{}': {wanted} wanted, {known} known", reject.role));
    }
    let next = match problem.code.as_str() {
        "unauthorized" => "is MEDIATOR_TOKEN, or `operator.token` in the data folder, this daemon's token?",
        "no-candidate" => "`mediator nodes` shows the nodes there are and what they can do",
        "node-leased" => "let its run end first: `mediator drain NODE --reason TEXT`, or `mediator cancel RUN`",
        "not-sealed" => "the run is still under way: `mediator submit --wait` or `mediator show RUN` tell when it ends",
        "static-node" => "the node was declared with `mediator node add`: `mediator node remove` it first",
        _ => return lines,
    };
    lines.push(next.to_owned());
    lines
}

/// Returns `{"as": role, "capability": .., "attrs": ..}` from `ROLE=CAPABILITY[,KEY=VALUE..]`.
pub fn parse_require(text: &str) -> Result<Value, String> {
    let Some((role, rest)) = text.split_once('=').filter(|(role, _)| !role.is_empty() && !role.contains(',')) else {
        return Err(format!("'{text}' does not start with a role: expected ROLE=CAPABILITY[,KEY=VALUE..]"));
    };
    let mut entry = parse_capability(rest)?;
    entry.insert("as".to_owned(), json!(role));
    Ok(entry.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read() {
        let check = |text: &str, expect: Value| assert_eq!(parse_require(text), Ok(expect));
        check("dut=board", json!({"as": "dut", "capability": "board"}));
        check(
            "dut=board,model=rpi4,cores=4",
            json!({"as": "dut", "capability": "board", "attrs": {"model": "rpi4", "cores": "4"}}),
        );
        check("d=b,k=a=b", json!({"as": "d", "capability": "b", "attrs": {"k": "a=b"}}));
    }

    #[test]
    fn wrong_requirements_say_what_is_expected() {
        let check = |text: &str, expect: &str| {
            let error = parse_require(text).expect_err(text);
            assert!(error.contains(expect), "{text}: {error}");
        };
        check("board", "expected ROLE=CAPABILITY");
        check("=board", "expected ROLE=CAPABILITY");
        check("board,model=rpi4", "expected ROLE=CAPABILITY");
        check("dut=", "expected CAPABILITY");
        check("dut=board,rpi4", "'rpi4' is not KEY=VALUE");
        check("dut=board,a=1,a=2", "'a' is given twice");
    }

    #[test]
    fn seconds_are_above_zero() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "nan", "inf", "1e300", "ten", ""] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ages_become_times() {
        assert_eq!(parse_since("2026-01-31T12:00:00Z").as_deref(), Ok("2026-01-31T12:00:00Z"));
        assert!(parse_since("2h").is_ok_and(|at| parse_rfc3339(&at).is_some()));
        for wrong in ["", "h", "5", "-5m", "5w", "5 보", "99999999999999999999d"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_one_unit() {
        let check = |seconds: i64, expect: &str| assert_eq!(span(seconds * 1000), expect);
        check(-3, "0 s");
        check(119, "119 s");
        check(120, "2 min");
        check(7200, "2 h");
        check(172_800, "2 d");
    }
}
