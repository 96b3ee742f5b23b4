//! A quick look ahead of matching: what a requirement *needs* and what nodes *offer*, as numbers. If something is
//! needed of which too few nodes have any, the requirement cannot fit; else [`super::matching::fit`] has to say.
//!
//! The numbers are hashes. Two things with one number only make the quick look say "perhaps" once more.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::matching::{Node, Requirement};

/// A capability, or one attribute of one.
pub type Offer = u64;

fn offer(capability: &str, attribute: Option<(&str, &str)>) -> Offer {
    let mut hasher = DefaultHasher::new();
    (capability, attribute).hash(&mut hasher);
    hasher.finish()
}

/// Returns what must be offered for `requirement` to fit, each with the number of nodes that must offer it; what is
/// rarest comes first, as far as can be told: an attribute is rarer than a capability.
pub fn needs(requirement: &Requirement) -> Vec<(Offer, u32)> {
    let mut needs = Vec::new();
    for role in &requirement.roles {
        let count = u32::try_from(role.count).unwrap_or(u32::MAX);
        let attrs = role.attrs.iter().map(|(key, value)| Some((key.as_str(), value.as_str())));
        for attribute in attrs.chain(role.attrs.is_empty().then_some(None)) {
            needs.push((attribute.is_none(), (offer(&role.capability, attribute), count)));
        }
    }
    // Stable: equal requirements have equal lists.
    needs.sort_by_key(|(is_plain, _)| *is_plain);
    needs.into_iter().map(|(_, need)| need).collect()
}

/// Returns what a node offers, each once.
pub fn offers(node: &Node) -> BTreeSet<Offer> {
    let mut offers = BTreeSet::new();
    for own in &node.capabilities {
        offers.insert(offer(&own.capability, None));
        offers.insert(offer(&own.capability, Some(("node", node.id.as_str()))));
        offers.extend(own.attrs.iter().map(|(key, value)| offer(&own.capability, Some((key, value)))));
    }
    offers
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::ids::NodeId;
    use crate::domain::matching::{Capability, Role, fit};

    const NAMES: [&str; 2] = ["board", "host"];
    const VALUES: [&str; 3] = ["a", "b", "n1"];

    fn attrs(pairs: Vec<(bool, usize)>) -> std::collections::BTreeMap<String, String> {
        let key = |node| if node { "node" } else { "model" };
        pairs.into_iter().map(|(node, value)| (key(node).to_owned(), VALUES[value].to_owned())).collect()
    }

    proptest! {
        /// What fits has all it needs on offer: the quick look never refuses what the matcher would take.
        #[test]
        fn whatever_fits_is_offered(
            nodes in proptest::collection::vec(proptest::collection::vec((0..2usize, 0..2usize), 0..3), 0..5),
            roles in proptest::collection::vec(
                (0..2usize, proptest::collection::vec((any::<bool>(), 0..3usize), 0..2), 1..3usize), 1..4),
            distinct in proptest::option::of(any::<bool>()),
        ) {
            let nodes: Vec<Node> = nodes.into_iter().enumerate().map(|(at, own)| Node {
                id: NodeId::from_stored(format!("n{at}")),
                agent: true,
                capabilities: own.into_iter().map(|(name, value)| Capability {
                    capability: NAMES[name].to_owned(), attrs: attrs(vec![(false, value)]),
                }).collect(),
            }).collect();
            let roles = roles.into_iter().enumerate().map(|(at, (name, pairs, count))| Role {
                name: format!("r{at}"), capability: NAMES[name].to_owned(), attrs: attrs(pairs), count, agent: false,
            }).collect();
            let requirement = Requirement { roles, distinct_nodes: distinct };
            let mut offered: HashMap<Offer, u32> = HashMap::new();
            nodes.iter().flat_map(offers).for_each(|offer| *offered.entry(offer).or_default() += 1);
            if fit(&requirement, &nodes.iter().collect::<Vec<_>>()).is_some() {
                for (need, count) in needs(&requirement) {
                    prop_assert!(offered.get(&need).is_some_and(|own| *own >= count));
                }
            }
        }
    }
}
