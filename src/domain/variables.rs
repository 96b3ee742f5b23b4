//! The variables by which a command finds its run and its nodes: the same for a step and for `hold`.

use serde_json::Value;

/// Returns the variables of one attempt, from the run's `assigned` as it is on the wire
/// (`[{as, nodes:[{node_id, label, attrs}]}]`):
///
/// - `MEDIATOR_RUN_ID`, `MEDIATOR_STEP` (the step's id), `MEDIATOR_ATTEMPT`;
/// - `MEDIATOR_NODE_<ROLE>`: the role's nodes, separated by a space;
/// - `MEDIATOR_ATTR_<ROLE>_<KEY>`: an attribute of the role's first node.
///
/// `MEDIATOR_ASSIGNED` is not among them: only whoever writes that file knows where it is.
pub fn variables(run_id: &str, step_id: &str, attempt: u64, assigned: &Value) -> Vec<(String, String)> {
    let mut out = vec![
        ("MEDIATOR_RUN_ID".to_owned(), run_id.to_owned()),
        ("MEDIATOR_STEP".to_owned(), step_id.to_owned()),
        ("MEDIATOR_ATTEMPT".to_owned(), attempt.to_string()),
    ];
    for role in assigned.as_array().into_iter().flatten() {
        let name = variable_part(role["as"].as_str().unwrap_or_default());
        let nodes = role["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ids: Vec<&str> = nodes.iter().filter_map(|node| node["node_id"].as_str()).collect();
        out.push((format!("MEDIATOR_NODE_{name}"), ids.join(" ")));
        let attrs = nodes.first().and_then(|node| node["attrs"].as_object());
        for (key, value) in attrs.into_iter().flatten() {
            out.push((format!("MEDIATOR_ATTR_{name}_{}", variable_part(key)), plain(value)));
        }
    }
    out
}

/// Returns `text` as part of a variable's name: letters in upper case, digits, and `_` for everything else.
pub fn variable_part(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// An attribute's value without the quotes that JSON puts around a string.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_role_gives_its_nodes_and_the_attributes_of_the_first() {
        let assigned = json!([
            {"as": "dut", "nodes": [
                {"node_id": "board-1", "label": "", "attrs": {"usb-port": "1-2", "slots": 4, "hot": true}},
                {"node_id": "board-2", "label": "", "attrs": {"usb-port": "1-3"}},
            ]},
            {"as": "big-host", "nodes": [{"node_id": "h", "label": "", "attrs": {}}]},
        ]);
        let got = variables("r1", "flash", 2, &assigned);
        let expect = [
            ("MEDIATOR_RUN_ID", "r1"),
            ("MEDIATOR_STEP", "flash"),
            ("MEDIATOR_ATTEMPT", "2"),
            ("MEDIATOR_NODE_DUT", "board-1 board-2"),
            ("MEDIATOR_ATTR_DUT_HOT", "true"),
            ("MEDIATOR_ATTR_DUT_SLOTS", "4"),
            ("MEDIATOR_ATTR_DUT_USB_PORT", "1-2"),
            ("MEDIATOR_NODE_BIG_HOST", "h"),
        ];
        let mut got: Vec<_> = got.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        got[4..7].sort_unstable();
        assert_eq!(got, expect);
    }

    #[test]
    fn a_run_without_nodes_still_has_its_own_variables() {
        assert_eq!(variables("r", "s", 1, &Value::Null).len(), 3);
    }
}
