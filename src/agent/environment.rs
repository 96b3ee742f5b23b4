//! The environment of a step: small and known, and never the agent's own.

use std::collections::BTreeMap;

use super::config::NodeConfig;
use super::wire::Claim;
use crate::domain::variables::variables;

/// What a step gets from the agent's environment without asking.
const ALWAYS: [&str; 5] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR"];

/// Where programs are looked for when the agent itself has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the whole environment of a claimed step. Later ones win: what every step gets, the owner's secrets, what it
/// asked to have passed through, what its contract sets, what mediator tells it.
///
/// # Errors
/// The text of the step's result, when it asks for a variable that the agent's file does not offer.
pub fn environment(
    claim: &Claim,
    config: &NodeConfig,
    assigned_file: &str,
    own: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    let mut out = basis(config, &own);
    if let Some(user) = &config.run_as {
        out.insert("HOME".to_owned(), user.home.clone());
        out.extend(["USER", "LOGNAME"].map(|name| (name.to_owned(), user.name.clone())));
    }
    for name in &claim.pass_env {
        if !config.offer_env.contains(name) {
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

/// Returns the whole environment of a command of the owner's, a cleanup or a check: everything that is offered, for
/// nobody else had a hand in it.
pub fn for_owner(
    config: &NodeConfig,
    run_id: Option<&str>,
    own: impl Fn(&str) -> Option<String>,
) -> Vec<(String, String)> {
    let mut out = basis(config, &own);
    for name in &config.offer_env {
        out.extend(own(name).map(|value| (name.clone(), value)));
    }
    out.insert("MEDIATOR_NODE".to_owned(), config.id.clone());
    out.extend(run_id.map(|run_id| ("MEDIATOR_RUN_ID".to_owned(), run_id.to_owned())));
    out.into_iter().collect()
}

fn basis(config: &NodeConfig, own: &impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    for name in ALWAYS {
        out.extend(own(name).map(|value| (name.to_owned(), value)));
    }
    out.extend(config.secrets.variables().iter().cloned());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::config::Drain;
    use crate::agent::secrets::Secrets;
    use crate::agent::user::User;
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
        environment(claim, &config(offer), "/a.json", own).map(|all| all.into_iter().collect())
    }

    fn config(offer: &[&str]) -> NodeConfig {
        NodeConfig {
            id: "n".into(),
            label: String::new(),
            work_dir: "/w".into(),
            capabilities: Vec::new(),
            drain: Drain::No,
            reason: String::new(),
            cleanup: None,
            check: None,
            run_as: None,
            offer_env: offer.iter().map(|name| (*name).to_owned()).collect(),
            secrets: Secrets::read(&["PASSWORD".to_owned()], &|_| Some("hunter22".to_owned())).expect("long enough"),
            spool_bytes: 1,
        }
    }

    #[test]
    fn a_step_gets_little_and_not_the_token() {
        let got = check(&claim(json!({"N": 3, "S": "x"}), json!([])), &[]).expect("nothing was asked for");
        let names: Vec<&str> = got.keys().map(String::as_str).collect();
        let expect = "HOME MEDIATOR_ASSIGNED MEDIATOR_ATTEMPT MEDIATOR_RUN_ID MEDIATOR_STEP N PASSWORD PATH S";
        assert_eq!(names.join(" "), expect);
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
    fn a_step_that_runs_as_somebody_is_at_home_there() {
        let user = User { name: "lab".into(), home: "/home/lab".into(), identity: None };
        let config = NodeConfig { run_as: Some(user), ..config(&[]) };
        let got = environment(&claim(json!({}), json!([])), &config, "/a.json", own).expect("nothing was asked for");
        let got: BTreeMap<String, String> = got.into_iter().collect();
        assert_eq!(["HOME", "USER", "LOGNAME"].map(|name| got[name].as_str()), ["/home/lab", "lab", "lab"]);
    }

    #[test]
    fn a_command_of_the_owner_gets_what_is_offered() {
        let got: BTreeMap<String, String> = for_owner(&config(&["CC"]), Some("r"), own).into_iter().collect();
        let names: Vec<&str> = got.keys().map(String::as_str).collect();
        assert_eq!(names, ["CC", "HOME", "MEDIATOR_NODE", "MEDIATOR_RUN_ID", "PASSWORD", "PATH"]);
    }

    #[test]
    fn a_contract_cannot_lie_about_the_run() {
        let got = check(&claim(json!({"MEDIATOR_RUN_ID": "other"}), json!([])), &[]).expect("nothing was asked for");
        assert_eq!(got["MEDIATOR_RUN_ID"], "r");
    }
}
