//! Matching: which nodes serve a requirement. Pure functions of the requirement and the nodes.
//!
//! Roles that must have different nodes form a *group*: those of one capability, or all with `distinct_nodes: true`,
//! or each alone with `false`. Groups do not constrain each other, so each is a bipartite matching of *slots* (a role
//! with `count` 2 has two) to nodes. An assignment is found whenever one exists; among several it is the one in
//! which each slot in turn has the first node that still lets the rest be placed.

use std::collections::BTreeMap;

use super::ids::NodeId;

/// One role to be filled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Role {
    /// `as`: the name the contract's steps use.
    pub name: String,
    /// Must be equal to a capability's name.
    pub capability: String,
    /// Must all be equal on that capability; canonical texts.
    pub attrs: BTreeMap<String, String>,
    /// How many different nodes, from 1 to 32.
    pub count: usize,
    /// Whether a `run` step uses it: then only nodes with an agent serve.
    pub agent: bool,
}

/// What a contract requires.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Requirement {
    /// In contract order.
    pub roles: Vec<Role>,
    /// `true` keeps all roles apart, `false` lets any share; `None`: only those of one capability are apart.
    pub distinct_nodes: Option<bool>,
}

/// One capability of a node's advert.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// Its name.
    pub capability: String,
    /// Its attributes, as canonical texts.
    pub attrs: BTreeMap<String, String>,
}

/// A known node, by its last advert.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its id; also its attribute `node`.
    pub id: NodeId,
    /// Whether an agent speaks for it (it is not static).
    pub agent: bool,
    /// What it can do; one entry must fit alone.
    pub capabilities: Vec<Capability>,
}

/// For each role, in contract order, the indices of its nodes in the slice that was matched.
pub type Assignment = Vec<Vec<usize>>;

/// Why no known nodes can ever do it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reject {
    /// `no-candidate` or `too-wide`.
    pub code: &'static str,
    /// The role that cannot be filled; `None` when it is the width of all.
    pub role: Option<String>,
    /// How many different nodes are wanted, all roles up to this one that must have different nodes together.
    pub wanted: usize,
    /// How many of them the known nodes can serve.
    pub known: usize,
    /// The sentence for people.
    pub detail: String,
}

impl AsRef<Self> for Node {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Node {
    /// Returns the first of its capabilities that serves `role`.
    pub fn serves(&self, role: &Role) -> Option<&Capability> {
        if role.agent && !self.agent {
            return None;
        }
        self.capabilities.iter().find(|own| {
            own.capability == role.capability
                && role.attrs.iter().all(|(key, value)| {
                    if key == "node" { value == self.id.as_str() } else { own.attrs.get(key) == Some(value) }
                })
        })
    }

    /// Returns how special it is: capabilities plus attributes over the whole advert. Plain nodes are taken first.
    pub fn weight(&self) -> usize {
        self.capabilities.iter().map(|own| 1 + own.attrs.len()).sum()
    }
}

/// Judges `requirement` on all known nodes, as if each were available: could they ever do it?
///
/// `known` must be in the order in which nodes are tried: by [`Node::weight`], then by id.
///
/// # Errors
/// [`Reject`], naming the first role that cannot be filled and the numbers. A "never" of any role wins over whatever
/// is unavailable now, so this comes before [`fit`].
pub fn judge<N: AsRef<Node>>(requirement: &Requirement, known: &[N]) -> Result<Assignment, Reject> {
    let groups = groups(requirement);
    for group in &groups {
        ever(requirement, known, group, &candidates(requirement, known, group))?;
    }
    Ok(fit(requirement, known).expect("every group can be served, and groups do not constrain each other"))
}

/// Assigns `requirement` among the `available` nodes, which must be in order (see [`judge`]); `None`: they do not
/// fit, and nothing is taken.
pub fn fit<N: AsRef<Node>>(requirement: &Requirement, available: &[N]) -> Option<Assignment> {
    let mut chosen = vec![Vec::new(); requirement.roles.len()];
    for group in groups(requirement) {
        if let [role] = group[..]
            && requirement.roles[role].count == 1
        {
            // The common case, without a list of all that would do: the first that does.
            let first = available.iter().position(|node| node.as_ref().serves(&requirement.roles[role]).is_some())?;
            chosen[role] = vec![first];
            continue;
        }
        let candidates = candidates(requirement, available, &group);
        let nodes = assign(requirement, available.len(), &group, &candidates)?;
        for (role, nodes) in group.into_iter().zip(nodes) {
            chosen[role] = nodes;
        }
    }
    Some(chosen)
}

/// For each role of a group the nodes that serve it alone.
fn candidates<N: AsRef<Node>>(requirement: &Requirement, nodes: &[N], group: &[usize]) -> Vec<Vec<usize>> {
    let serving = |role: &Role| (0..nodes.len()).filter(|&node| nodes[node].as_ref().serves(role).is_some()).collect();
    group.iter().map(|&role| serving(&requirement.roles[role])).collect()
}

/// Returns how many different nodes an assignment takes: a node that serves two roles counts once.
pub fn width(assignment: &[Vec<usize>]) -> usize {
    let mut nodes: Vec<usize> = assignment.iter().flatten().copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len()
}

/// Makes the refusal of a contract whose best assignment is wider than one run may be.
pub fn too_wide(width: usize, most: usize) -> Reject {
    Reject {
        code: "too-wide",
        role: None,
        wanted: width,
        known: width,
        detail: format!("it needs {width} different nodes, and one run may hold at most {most} (lease.max_per_run)"),
    }
}

fn groups(requirement: &Requirement) -> Vec<Vec<usize>> {
    let all = 0..requirement.roles.len();
    match requirement.distinct_nodes {
        Some(true) => vec![all.collect()],
        Some(false) => all.map(|role| vec![role]).collect(),
        None => {
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for role in all {
                let capability = &requirement.roles[role].capability;
                match groups.iter_mut().find(|group| requirement.roles[group[0]].capability == *capability) {
                    Some(group) => group.push(role),
                    None => groups.push(vec![role]),
                }
            }
            groups
        }
    }
}

/// Judges a group on all known nodes: places its slots in order, and refuses at the first that cannot be.
fn ever<N: AsRef<Node>>(
    requirement: &Requirement,
    fleet: &[N],
    group: &[usize],
    candidates: &[Vec<usize>],
) -> Result<(), Reject> {
    let mut matching = Matching::new(fleet.len());
    let mut wanted = 0;
    for (&role, candidates) in group.iter().zip(candidates) {
        let role = &requirement.roles[role];
        wanted += role.count;
        let placed = (0..role.count).filter(|_| matching.place(candidates)).count();
        if placed < role.count {
            let known = wanted - role.count + placed;
            return Err(Reject {
                code: "no-candidate",
                role: Some(role.name.clone()),
                wanted,
                known,
                detail: missing(role, fleet, wanted, known),
            });
        }
    }
    Ok(())
}

/// Says what is missing for `role`, as plainly as the adverts allow.
fn missing<N: AsRef<Node>>(role: &Role, fleet: &[N], wanted: usize, known: usize) -> String {
    let numbers = format!("role `{}`: {wanted} wanted, {known} known", role.name);
    let fleet = || fleet.iter().map(AsRef::as_ref);
    let own: Vec<&Capability> =
        fleet().flat_map(|node| node.capabilities.iter()).filter(|own| own.capability == role.capability).collect();
    if own.is_empty() {
        return format!("{numbers}: no known node has the capability `{}`", role.capability);
    }
    for (key, value) in &role.attrs {
        if key == "node" {
            if !fleet().any(|node| node.id.as_str() == value) {
                return format!("{numbers}: no known node is called `{value}`");
            }
        } else if !own.iter().any(|own| own.attrs.contains_key(key)) {
            return format!("{numbers}: no `{}` has the attribute `{key}`", role.capability);
        } else if !own.iter().any(|own| own.attrs.get(key) == Some(value)) {
            return format!("{numbers}: no `{}` has `{key}` = `{value}`", role.capability);
        }
    }
    let anyhow = Role { agent: false, ..role.clone() };
    if role.agent && !fleet().any(|node| node.serves(role).is_some()) && fleet().any(|n| n.serves(&anyhow).is_some()) {
        return format!("{numbers}: a command needs a node with an agent, and those that fit are static");
    }
    numbers
}

/// Assigns a group's slots among `candidates`; for each of its roles the nodes, or `None` if they do not all fit.
fn assign(
    requirement: &Requirement,
    fleet: usize,
    group: &[usize],
    candidates: &[Vec<usize>],
) -> Option<Vec<Vec<usize>>> {
    let mut matching = Matching::new(fleet);
    for (&role, candidates) in group.iter().zip(candidates) {
        for _ in 0..requirement.roles[role].count {
            if !matching.place(candidates) {
                return None;
            }
        }
    }
    matching.settle();
    let mut slots = matching.slots.iter().map(|slot| slot.node);
    Some(group.iter().map(|&role| slots.by_ref().take(requirement.roles[role].count).collect()).collect())
}

/// A matching that grows slot by slot along augmenting paths (Kuhn's algorithm).
struct Matching<'a> {
    slots: Vec<Slot<'a>>,
    /// For each node the slot that has it.
    holder: Vec<Option<usize>>,
    /// Nodes that are no longer given up: see [`Matching::settle`].
    fixed: Vec<bool>,
    /// Marks of the search under way, so that nothing is cleared between searches.
    seen: Vec<usize>,
    search: usize,
}

struct Slot<'a> {
    candidates: &'a [usize],
    node: usize,
}

impl<'a> Matching<'a> {
    fn new(nodes: usize) -> Self {
        Self {
            slots: Vec::new(),
            holder: vec![None; nodes],
            fixed: vec![false; nodes],
            seen: vec![0; nodes],
            search: 0,
        }
    }

    /// Adds a slot if all slots so far can still be served together.
    fn place(&mut self, candidates: &'a [usize]) -> bool {
        let slot = self.slots.len();
        self.slots.push(Slot { candidates, node: usize::MAX });
        self.search += 1;
        let placed = self.augment(slot);
        if !placed {
            self.slots.pop();
        }
        placed
    }

    fn augment(&mut self, slot: usize) -> bool {
        let candidates = self.slots[slot].candidates;
        // A free node ends the search at once; only without one are others asked to move.
        if let Some(&node) = candidates.iter().find(|&&node| self.holder[node].is_none() && self.open(node)) {
            self.take(slot, node);
            return true;
        }
        for &node in candidates {
            if !self.open(node) {
                continue;
            }
            self.seen[node] = self.search;
            let holder = self.holder[node].expect("a free node was taken above");
            if self.augment(holder) {
                self.take(slot, node);
                return true;
            }
        }
        false
    }

    fn open(&self, node: usize) -> bool {
        !self.fixed[node] && self.seen[node] != self.search
    }

    fn take(&mut self, slot: usize, node: usize) {
        self.slots[slot].node = node;
        self.holder[node] = Some(slot);
    }

    /// Turns any complete matching into the first one in order: each slot in turn gets the first of its nodes that
    /// still lets all later slots be served.
    fn settle(&mut self) {
        for slot in 0..self.slots.len() {
            let candidates = self.slots[slot].candidates;
            for &node in candidates {
                if self.fixed[node] {
                    continue;
                }
                let own = self.slots[slot].node;
                if own == node {
                    break;
                }
                let Some(other) = self.holder[node] else {
                    self.holder[own] = None;
                    self.take(slot, node);
                    break;
                };
                // The other slot must do without: its way out may end at the node given up here.
                self.holder[own] = None;
                self.fixed[node] = true;
                self.search += 1;
                if self.augment(other) {
                    self.take(slot, node);
                    break;
                }
                self.fixed[node] = false;
                self.holder[own] = Some(slot);
            }
            self.fixed[self.slots[slot].node] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(id: &str, agent: bool, capabilities: &[(&str, &[(&str, &str)])]) -> Node {
        let capabilities = capabilities.iter().map(|(capability, attrs)| Capability {
            capability: (*capability).to_owned(),
            attrs: attrs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        });
        Node { id: NodeId::from_stored(id), agent, capabilities: capabilities.collect() }
    }

    fn role(name: &str, capability: &str, attrs: &[(&str, &str)], count: usize) -> Role {
        let attrs = attrs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Role { name: name.to_owned(), capability: capability.to_owned(), attrs, count, agent: false }
    }

    fn ordered(nodes: &[Node]) -> Vec<&Node> {
        let mut sorted: Vec<&Node> = nodes.iter().collect();
        sorted.sort_by(|a, b| a.weight().cmp(&b.weight()).then_with(|| a.id.cmp(&b.id)));
        sorted
    }

    /// All assignments of a requirement, in the order that "each role takes the first node" prefers.
    fn brute(requirement: &Requirement, nodes: &[&Node]) -> Option<Assignment> {
        let slots: Vec<usize> = (0..requirement.roles.len())
            .flat_map(|role| std::iter::repeat_n(role, requirement.roles[role].count))
            .collect();
        let apart = |a: usize, b: usize| {
            a == b
                || match requirement.distinct_nodes {
                    Some(all) => all,
                    None => requirement.roles[a].capability == requirement.roles[b].capability,
                }
        };
        let mut taken: Vec<usize> = Vec::new();
        fn go(
            slots: &[usize],
            taken: &mut Vec<usize>,
            nodes: usize,
            allowed: &dyn Fn(usize, usize) -> bool,
            apart: &dyn Fn(usize, usize) -> bool,
        ) -> bool {
            let Some(&role) = slots.get(taken.len()) else { return true };
            for node in 0..nodes {
                let clash = taken.iter().enumerate().any(|(slot, &other)| other == node && apart(slots[slot], role));
                if allowed(role, node) && !clash {
                    taken.push(node);
                    if go(slots, taken, nodes, allowed, apart) {
                        return true;
                    }
                    taken.pop();
                }
            }
            false
        }
        let allowed = |role: usize, node: usize| nodes[node].serves(&requirement.roles[role]).is_some();
        if !go(&slots, &mut taken, nodes.len(), &allowed, &apart) {
            return None;
        }
        let mut chosen = vec![Vec::new(); requirement.roles.len()];
        for (role, node) in slots.into_iter().zip(taken) {
            chosen[role].push(node);
        }
        Some(chosen)
    }

    fn any_node() -> impl Strategy<Value = (bool, Vec<(usize, usize)>)> {
        (any::<bool>(), proptest::collection::vec((0..3usize, 0..3usize), 0..3))
    }

    fn any_role() -> impl Strategy<Value = (usize, Option<usize>, usize, bool)> {
        (0..3usize, proptest::option::of(0..3usize), 1..3usize, any::<bool>())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Section "Matching" of ARCHITECTURE.md: an assignment is found whenever one exists, and it is the first.
        #[test]
        fn equals_the_brute_force_answer(
            nodes in proptest::collection::vec(any_node(), 0..6),
            roles in proptest::collection::vec(any_role(), 1..4),
            distinct in proptest::option::of(any::<bool>()),
        ) {
            const NAMES: [&str; 3] = ["board", "host", "scope"];
            const MODELS: [&str; 3] = ["a", "b", "c"];
            let nodes: Vec<Node> = nodes.into_iter().enumerate().map(|(at, (agent, own))| Node {
                id: NodeId::from_stored(format!("n{at}")),
                agent,
                capabilities: own.into_iter().map(|(name, model)| Capability {
                    capability: NAMES[name].to_owned(),
                    attrs: [("model".to_owned(), MODELS[model].to_owned())].into(),
                }).collect(),
            }).collect();
            let roles = roles.into_iter().enumerate().map(|(at, (name, model, count, agent))| {
                let attrs = model.map(|model| ("model".to_owned(), MODELS[model].to_owned())).into_iter().collect();
                Role { name: format!("r{at}"), capability: NAMES[name].to_owned(), attrs, count, agent }
            }).collect();
            let requirement = Requirement { roles, distinct_nodes: distinct };
            let nodes = ordered(&nodes);
            let expected = brute(&requirement, &nodes);
            prop_assert_eq!(fit(&requirement, &nodes), expected.clone());
            match judge(&requirement, &nodes) {
                Ok(assignment) => prop_assert_eq!(Some(assignment), expected),
                Err(reject) => {
                    prop_assert!(expected.is_none());
                    prop_assert!(reject.known < reject.wanted);
                }
            }
        }
    }

    #[test]
    fn plain_nodes_are_taken_first_and_special_ones_stay_free() {
        let nodes = [
            node("a-special", true, &[("board", &[("model", "rpi4"), ("camera", "1")])]),
            node("b-plain", true, &[("board", &[("model", "rpi4")])]),
        ];
        let nodes = ordered(&nodes);
        let any = Requirement { roles: vec![role("dut", "board", &[], 1)], distinct_nodes: None };
        assert_eq!(nodes[fit(&any, &nodes).unwrap()[0][0]].id.as_str(), "b-plain");
        let both = Requirement {
            roles: vec![role("dut", "board", &[], 1), role("cam", "board", &[("node", "b-plain")], 1)],
            distinct_nodes: None,
        };
        let chosen = fit(&both, &nodes).unwrap();
        assert_eq!(nodes[chosen[0][0]].id.as_str(), "a-special", "the first role makes room for the second");
    }

    #[test]
    fn a_refusal_names_the_role_and_the_numbers() {
        let nodes = [
            node("b1", true, &[("board", &[("model", "rpi4")])]),
            node("b2", true, &[("board", &[("model", "rpi4")])]),
            node("s1", false, &[("scope", &[])]),
        ];
        let nodes = ordered(&nodes);
        let refuse = |roles: Vec<Role>| judge(&Requirement { roles, distinct_nodes: None }, &nodes).unwrap_err();
        let reject = refuse(vec![role("dut", "board", &[], 1), role("peer", "board", &[], 2)]);
        assert_eq!((reject.role.as_deref(), reject.wanted, reject.known), (Some("peer"), 3, 2));
        assert_eq!(reject.detail, "role `peer`: 3 wanted, 2 known");
        assert!(refuse(vec![role("x", "laser", &[], 1)]).detail.contains("no known node has the capability `laser`"));
        assert!(refuse(vec![role("x", "board", &[("hw", "1")], 1)]).detail.contains("has the attribute `hw`"));
        assert!(refuse(vec![role("x", "board", &[("model", "z")], 1)]).detail.contains("has `model` = `z`"));
        assert!(refuse(vec![role("x", "board", &[("node", "b9")], 1)]).detail.contains("is called `b9`"));
        let worked = Role { agent: true, ..role("x", "scope", &[], 1) };
        assert!(refuse(vec![worked]).detail.contains("static"));
    }

    #[test]
    fn the_largest_legal_requirement_is_judged_quickly_even_when_it_cannot_fit() {
        let nodes: Vec<Node> = (0..1000).map(|at| node(&format!("n{at}"), true, &[("board", &[])])).collect();
        let nodes = ordered(&nodes);
        let roles = (0..32).map(|at| role(&format!("r{at}"), "board", &[], 32)).collect();
        let reject = judge(&Requirement { roles, distinct_nodes: None }, &nodes).unwrap_err();
        assert_eq!((reject.wanted, reject.known), (1024, 1000));
    }
}
