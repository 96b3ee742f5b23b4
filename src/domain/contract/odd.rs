//! What is legal in a contract and yet seldom meant: for `mediator lint`, never a reason to refuse.

use super::{Contract, Kind, RoleRef};
use crate::domain::Invalid;

impl Contract {
    /// Returns what a second look is worth, with the path of each.
    pub fn odd(&self) -> Vec<Invalid> {
        let mut odd = Vec::new();
        self.odd_roles(&mut odd);
        for (at, step) in self.steps.iter().enumerate() {
            let mut note = |field: &str, what: String| {
                odd.push(Invalid { path: format!("/steps/{at}/{field}"), what });
            };
            match &step.kind {
                Kind::Run(command) => {
                    if command.argv.len() == 1 && command.argv[0].contains(' ') {
                        let what = "one word with a space: there is no shell, program and arguments are separate words";
                        note("run/0", what.to_owned());
                    }
                    if let Some(name) = command.pass_env.iter().find(|name| command.env.contains_key(*name)) {
                        note("env", format!("`{name}` is set here, so passing it through has no effect"));
                    }
                    if let Some(name) = command.env.keys().find(|name| name.starts_with("MEDIATOR_")) {
                        note("env", format!("`{name}`: variables of this kind are set by the agent, which wins"));
                    }
                    if command.timeout_ms.is_none() && self.limit_ms.is_none() {
                        let what = "no time limit: a command that hangs keeps the nodes until run.limit_seconds";
                        note("run", what.to_owned());
                    }
                }
                Kind::Ask(question) if !question.options.is_empty() && question.accept.is_empty() => {
                    note("ask", "every option lets the run go on: `accept` says which should".to_owned());
                }
                _ => {}
            }
            if step.again.is_some() && step.allow_failure {
                note("allow_failure", "with a loop it counts only once the attempts are used up".to_owned());
            }
        }
        odd
    }

    /// Roles that nobody uses, and roles that are kept longer than they are used.
    fn odd_roles(&self, odd: &mut Vec<Invalid>) {
        let holds = self.steps.iter().any(|step| matches!(step.kind, Kind::Hold { .. }));
        for (at, role) in self.requires.roles.iter().enumerate() {
            let path = format!("/requires/{at}");
            let uses = |uses: &RoleRef| uses.role == role.name;
            let last = self.steps.iter().rposition(|step| match &step.kind {
                Kind::Run(command) => uses(&command.uses),
                _ => false,
            });
            let released = self.steps.iter().any(|step| step.release.iter().any(uses));
            match last {
                None if !holds => odd.push(Invalid { path, what: format!("no step uses `{}`", role.name) }),
                Some(last) if !released && !holds && last + 1 < self.steps.len() => {
                    let id = &self.steps[last].id;
                    let what = format!(
                        "`{}` is last used by step `{id}` and kept until the end: `\"release\": [\"{}\"]` there gives it back",
                        role.name, role.name
                    );
                    odd.push(Invalid { path, what });
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::contract::Contract;
    use crate::domain::json;

    fn odd(text: &str) -> Vec<String> {
        let body = json::parse(text.as_bytes()).expect("it is JSON");
        let contract = Contract::parse(&body).expect("it is legal");
        contract.odd().into_iter().map(|odd| odd.path).collect()
    }

    #[test]
    fn what_is_seldom_meant_is_pointed_out_and_nothing_else() {
        let good = r#"{"limit_seconds": 60, "requires": [{"as": "a", "capability": "x"}, {"as": "b", "capability": "y"}],
            "steps": [{"id": "1", "uses": "b", "run": ["true"], "release": ["b"]}, {"id": "2", "uses": "a", "run": ["true"]}]}"#;
        assert_eq!(odd(good), [""; 0]);
        let strange = r#"{"requires": [{"as": "a", "capability": "x"}, {"as": "b", "capability": "y"}, {"as": "c", "capability": "z"}],
            "steps": [{"id": "1", "uses": "b", "run": ["make all"], "env": {"A": 1}, "pass_env": ["A"], "timeout_seconds": 1},
                      {"id": "2", "ask": {"prompt": "?", "options": ["y", "n"]}},
                      {"id": "3", "uses": "a", "run": ["true"]}]}"#;
        assert_eq!(
            odd(strange),
            ["/requires/1", "/requires/2", "/steps/0/run/0", "/steps/0/env", "/steps/1/ask", "/steps/2/run"]
        );
    }
}
