//! Why a run waits: from what each role's fitting nodes are at, a fixed code and a sentence that says what would have
//! to happen next.

/// What keeps a fitting node from a waiting run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStatus {
    /// Nothing.
    Free,
    /// A run holds it.
    Leased,
    /// It is being cleaned after a run.
    Cleaning,
    /// It takes no new lease.
    Draining,
    /// It was not heard of lately.
    Silent,
}

impl NodeStatus {
    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Leased => "leased",
            Self::Cleaning => "cleaning",
            Self::Draining => "draining",
            Self::Silent => "silent",
        }
    }
}

/// One role of a waiting run.
#[derive(Clone, Debug)]
pub struct RoleFacts {
    /// Its name.
    pub name: String,
    /// How many different nodes it wants.
    pub wanted: usize,
    /// What its fitting nodes are at, with their ids, and of a leased one the run that holds it.
    pub nodes: Vec<(String, NodeStatus, Option<String>)>,
}

/// What stands in the way, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The known nodes cannot serve it any more: some were removed, forgotten or changed.
    NoCandidate,
    /// The nodes that are free now would be more than one run may hold.
    TooWide,
    /// Enough nodes are free for each role alone, but not for all together.
    Together,
    /// Nothing: it starts with the next sweep.
    Nothing,
    /// Something about one role: by index.
    Role(usize),
}

/// Returns the code and the sentence. `passed` is how many later runs have started meanwhile.
pub fn explain(roles: &[RoleFacts], obstacle: Obstacle, passed: i64) -> (&'static str, String) {
    let (code, mut text) = match obstacle {
        Obstacle::NoCandidate => (
            "no-candidate",
            "no set of known nodes can serve it any more; it waits for nodes to appear, or cancel it".to_owned(),
        ),
        Obstacle::TooWide => (
            "too-wide",
            "the nodes that are free now would be more than one run may hold (lease.max_per_run); another combination \
             may fit later"
                .to_owned(),
        ),
        Obstacle::Nothing => ("starting", "its nodes are free: it starts with the next sweep".to_owned()),
        Obstacle::Together => (
            "nodes-shared",
            "each role could be served alone, but not all together: roles compete for the same free nodes".to_owned(),
        ),
        Obstacle::Role(at) => waiting_for(&roles[at]),
    };
    if passed > 0 {
        let runs = if passed == 1 { "1 later run has" } else { &format!("{passed} later runs have") };
        text.push_str(&format!(
            "; {runs} started meanwhile, on nodes that this one could not use at that moment: no node is kept back"
        ));
    }
    (code, text)
}

fn waiting_for(role: &RoleFacts) -> (&'static str, String) {
    let of = |status: NodeStatus| role.nodes.iter().filter(move |(_, own, _)| *own == status);
    let names = |status: NodeStatus| {
        let mut names: Vec<&str> = of(status).take(4).map(|(id, ..)| id.as_str()).collect();
        if of(status).count() > names.len() {
            names.push("..");
        }
        names.join(", ")
    };
    let missing = role.wanted.saturating_sub(of(NodeStatus::Free).count());
    let head = format!("role `{}` needs {missing} more node{}", role.name, if missing == 1 { "" } else { "s" });
    // The likeliest event first: a run that ends, then a cleaning that does, then a drain that is lifted, then a node that comes back.
    if of(NodeStatus::Leased).next().is_some() {
        let mut runs: Vec<&str> = of(NodeStatus::Leased).filter_map(|(_, _, run)| run.as_deref()).collect();
        runs.sort_unstable();
        runs.dedup();
        let runs =
            if runs.len() > 4 { format!("one of {} runs", runs.len()) } else { format!("run {}", runs.join(" or ")) };
        ("nodes-busy", format!("{head}: {runs} has to give back {}", names(NodeStatus::Leased)))
    } else if of(NodeStatus::Cleaning).next().is_some() {
        ("nodes-cleaning", format!("{head}: {} has to be cleaned after its last run", names(NodeStatus::Cleaning)))
    } else if of(NodeStatus::Draining).next().is_some() {
        ("nodes-draining", format!("{head}: the drain of {} has to be lifted", names(NodeStatus::Draining)))
    } else {
        ("nodes-silent", format!("{head}: {} has to be heard of again", names(NodeStatus::Silent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(nodes: &[(&str, NodeStatus, Option<&str>)]) -> RoleFacts {
        let nodes = nodes.iter().map(|(id, status, run)| ((*id).to_owned(), *status, run.map(str::to_owned))).collect();
        RoleFacts { name: "dut".into(), wanted: 1, nodes }
    }

    #[test]
    fn the_sentence_names_the_event_that_is_waited_for() {
        use NodeStatus::{Draining, Leased, Silent};
        let busy = role(&[("b1", Leased, Some("r-1")), ("b2", Silent, None)]);
        let (code, text) = explain(&[busy], Obstacle::Role(0), 0);
        assert_eq!((code, text.as_str()), ("nodes-busy", "role `dut` needs 1 more node: run r-1 has to give back b1"));
        let cleaning = role(&[("b1", NodeStatus::Cleaning, Some("r-1")), ("b2", Draining, None)]);
        assert_eq!(explain(&[cleaning], Obstacle::Role(0), 0).0, "nodes-cleaning");
        assert_eq!(
            explain(&[role(&[("b1", Draining, None), ("b2", Silent, None)])], Obstacle::Role(0), 0).0,
            "nodes-draining"
        );
        let (code, text) = explain(&[role(&[("b2", Silent, None)])], Obstacle::Role(0), 2);
        assert_eq!(code, "nodes-silent");
        assert!(text.contains("2 later runs have started meanwhile"), "{text}");
    }
}
