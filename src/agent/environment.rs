//! The environment of a step: small and known, and never the agent's own.

use std::collections::BTreeMap;

use super::wire::Claim;
use crate::domain::variables::variables;

/// What a step gets from the agent's environment without asking.
const ALWAYS: [&str; 5] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR"];

/// Where programs are looked for when the agent itself has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the whole environment of a claimed step. Later ones win: what every step gets, what it asked to have passed
/// through, what its contract sets, what mediator tells it.
///
/// # Errors
/// The text of the step's result, when it asks for a variable that `offer_env` does not name.
pub fn environment(
    claim: &Claim,
    offer_env: &[String],
    assigned_file: &str,
    own: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    let mut out = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    for name in ALWAYS {
        out.extend(own(name).map(|value| (name.to_owned(), value)));
    }
    for name in &claim.pass_env {
        if !offer_env.contains(name) {
            return Err(format!("pass_env {name} is not offered by this agent"));
        }
        out.extend(own(name).map(|value| (name.clone(), value)));
    }
    for (name, value) in &claim.env {
        out.insert(name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    out.extend(variables(&claim.run_id, &claim.id, claim.attempt, &claim.assigned));
    out.insert("MEDIATOR_ASSIGNED".to_owned(), assigned_file.to_owned());
    Ok(out.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(env: serde_json::Value, pass_env: serde_json::Value) -> Claim {
        serde_json::from_value(json!({
            "run_id": "r", "seq": 1, "id": "s", "attempt": 1, "run": ["true"], "env": env, "pass_env": pass_env,
            "assigned": [], "lease": {"nonce": "n", "ttl_seconds": 1.0}
        }))
        .expect("it is a claim")
    }

    fn own(name: &str) -> Option<String> {
        ["HOME", "MEDIATOR_TOKEN", "CC"].contains(&name).then(|| format!("own-{name}"))
    }

    fn check(claim: &Claim, offer: &[&str]) -> Result<BTreeMap<String, String>, String> {
        let offer: Vec<String> = offer.iter().map(|name| (*name).to_owned()).collect();
        environment(claim, &offer, "/a.json", own).map(|all| all.into_iter().collect())
    }

    #[test]
    fn a_step_gets_little_and_not_the_token() {
        let got = check(&claim(json!({"N": 3, "S": "x"}), json!([])), &[]).expect("nothing was asked for");
        let names: Vec<&str> = got.keys().map(String::as_str).collect();
        let expect =
            ["HOME", "MEDIATOR_ASSIGNED", "MEDIATOR_ATTEMPT", "MEDIATOR_RUN_ID", "MEDIATOR_STEP", "N", "PATH", "S"];
        assert_eq!(names, expect);
        assert_eq!((got["N"].as_str(), got["S"].as_str(), got["PATH"].as_str()), ("3", "x", DEFAULT_PATH));
    }

    #[test]
    fn only_what_is_offered_passes_through() {
        let asked = claim(json!({}), json!(["CC"]));
        assert_eq!(check(&asked, &["CC"]).expect("it is offered")["CC"], "own-CC");
        assert_eq!(check(&asked, &[]), Err("pass_env CC is not offered by this agent".to_owned()));
        let unset = claim(json!({}), json!(["LD"]));
        assert!(!check(&unset, &["LD"]).expect("it is offered").contains_key("LD"));
    }

    #[test]
    fn a_contract_cannot_lie_about_the_run() {
        let got = check(&claim(json!({"MEDIATOR_RUN_ID": "other"}), json!([])), &[]).expect("nothing was asked for");
        assert_eq!(got["MEDIATOR_RUN_ID"], "r");
    }
}
