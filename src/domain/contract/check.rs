//! What ties the steps of a contract to each other and to its roles.

use std::collections::BTreeMap;

use super::{Acquire, Contract, Kind, RoleRef};
use crate::domain::Invalid;

/// A set of step indices.
type Set = Vec<bool>;

pub(super) fn contract(contract: &Contract) -> Result<(), Invalid> {
    let before = ancestors(contract);
    let counts = roles(contract)?;
    for (at, step) in contract.steps.iter().enumerate() {
        if let Kind::Run(command) = &step.kind {
            known_role(&command.uses, &counts).map_err(|what| at_step(at, "uses", what))?;
        }
        for (item, role) in step.release.iter().enumerate() {
            known_role(role, &counts).map_err(|what| at_step(at, &format!("release/{item}"), what))?;
            release(contract, at, item, role, &before)?;
        }
        if let Kind::Acquire(acquire) = &step.kind {
            acquisition(contract, at, acquire)?;
        }
    }
    loops(contract, &before)?;
    if contract.attended && !contract.steps.iter().any(|step| matches!(step.kind, Kind::Hold { .. })) {
        return Err(Invalid { path: "/attended".into(), what: "only a contract with a hold can be attended".into() });
    }
    Ok(())
}

fn at_step(at: usize, field: &str, what: impl Into<String>) -> Invalid {
    let path = if field.is_empty() { format!("/steps/{at}") } else { format!("/steps/{at}/{field}") };
    Invalid { path, what: what.into() }
}

/// For each step, those that come before it along `needs`.
fn ancestors(contract: &Contract) -> Vec<Set> {
    let mut before: Vec<Set> = Vec::with_capacity(contract.steps.len());
    for step in &contract.steps {
        let mut own = vec![false; contract.steps.len()];
        for &need in &step.needs {
            own[need] = true;
            for (mine, theirs) in own.iter_mut().zip(&before[need]) {
                *mine |= theirs;
            }
        }
        before.push(own);
    }
    before
}

/// Checks that roles are unique, also as names of variables; returns how many nodes each has.
fn roles(contract: &Contract) -> Result<BTreeMap<&str, usize>, Invalid> {
    let required = contract.requires.roles.iter().enumerate().map(|(at, role)| (format!("/requires/{at}/as"), role));
    let acquired = contract.steps.iter().enumerate().filter_map(|(at, step)| match &step.kind {
        Kind::Acquire(acquire) => Some((format!("/steps/{at}/acquire/want/as"), &acquire.want)),
        _ => None,
    });
    let mut counts = BTreeMap::new();
    let mut variables = BTreeMap::new();
    for (path, role) in required.chain(acquired) {
        if counts.insert(role.name.as_str(), role.count).is_some() {
            return Err(Invalid { path, what: "another role has this name".into() });
        }
        let variable: String =
            role.name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        if let Some(other) = variables.insert(variable.clone(), &role.name) {
            let what = format!("`{other}` and `{}` would both be MEDIATOR_NODE_{variable}", role.name);
            return Err(Invalid { path, what });
        }
    }
    Ok(counts)
}

fn known_role(role: &RoleRef, counts: &BTreeMap<&str, usize>) -> Result<(), String> {
    match (counts.get(role.role.as_str()), role.index) {
        (None, _) => Err(format!("no role is called `{}`", role.role)),
        (Some(&count), Some(index)) if index >= count => {
            Err(format!("`{}` has {count} node{}, counted from 0", role.role, if count == 1 { "" } else { "s" }))
        }
        _ => Ok(()),
    }
}

/// Every other step that uses a released role must come before the releasing one.
fn release(contract: &Contract, at: usize, item: usize, role: &RoleRef, before: &[Set]) -> Result<(), Invalid> {
    for (other, step) in contract.steps.iter().enumerate() {
        let Kind::Run(command) = &step.kind else { continue };
        let same =
            command.uses.role == role.role && role.index.is_none_or(|index| index == command.uses.index.unwrap_or(0));
        if same && other != at && !before[at][other] {
            let what = format!("step `{}` uses `{role}` and does not come before this step along needs", step.id);
            return Err(at_step(at, &format!("release/{item}"), what));
        }
    }
    Ok(())
}

fn acquisition(contract: &Contract, at: usize, acquire: &Acquire) -> Result<(), Invalid> {
    for (name, next) in [("acquired", acquire.acquired), ("unavailable", acquire.unavailable)] {
        if !contract.steps[next].needs.contains(&at) {
            let what = format!("step `{}` must need `{}`", contract.steps[next].id, contract.steps[at].id);
            return Err(at_step(at, &format!("acquire/{name}"), what));
        }
    }
    // What would be skipped if the node was not had: only that may count on it.
    let mut skipped = vec![false; contract.steps.len()];
    for (next, step) in contract.steps.iter().enumerate() {
        skipped[next] =
            next == acquire.acquired || (!step.needs.is_empty() && step.needs.iter().all(|&need| skipped[need]));
    }
    for (user, step) in contract.steps.iter().enumerate() {
        let Kind::Run(command) = &step.kind else { continue };
        if command.uses.role == acquire.want.name && !skipped[user] {
            let what = format!(
                "`{}` is had only if step `{}` acquires it, and this step would not be skipped otherwise",
                acquire.want.name, contract.steps[at].id
            );
            return Err(at_step(user, "uses", what));
        }
    }
    Ok(())
}

fn loops(contract: &Contract, before: &[Set]) -> Result<(), Invalid> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (last, step) in contract.steps.iter().enumerate() {
        let Some(again) = &step.again else { continue };
        let refuse = |what: String| Err(at_step(last, "loop", what));
        let range = again.back_to..last;
        if let Some((_, other)) = ranges.iter().find(|(_, end)| again.back_to <= *end) {
            return refuse(format!("its range overlaps the loop of step `{}`", contract.steps[*other].id));
        }
        ranges.push((again.back_to, last));
        for inner in range.clone() {
            let inside = &contract.steps[inner];
            if !before[last][inner] {
                return refuse(format!("step `{}` of its range does not come before it along needs", inside.id));
            }
            if !inside.release.is_empty() {
                return refuse(format!("step `{}` of its range releases: only the last may", inside.id));
            }
        }
        for (outer, outside) in contract.steps.iter().enumerate() {
            if range.contains(&outer) || outer == last {
                continue;
            }
            if let Some(&inner) = outside.needs.iter().find(|need| range.contains(*need)) {
                let inner = &contract.steps[inner].id;
                return refuse(format!("step `{}` outside its range needs `{inner}` inside", outside.id));
            }
        }
    }
    Ok(())
}
