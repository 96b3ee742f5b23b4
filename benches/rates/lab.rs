//! What is asked of the daemon: nodes, contracts, the calls of an agent.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Answer, Conn};

/// The life of every agent here.
pub const INSTANCE: &str = "bench";

/// Declares a node with an agent: `capabilities` as on the wire.
pub async fn advertise(conn: &mut Conn, node: &str, capabilities: Value) {
    let advert = json!({"node_id": node, "instance": INSTANCE, "capabilities": capabilities});
    conn.post("/v1/nodes", advert.to_string()).await.expect(200);
}

/// A node with the one capability `board`.
pub async fn board(conn: &mut Conn, node: &str) {
    advertise(conn, node, json!([{"capability": "board"}])).await;
}

/// Makes a node take no new lease.
pub async fn drain(conn: &mut Conn, node: &str) {
    conn.post(&format!("/v1/nodes/{node}/drain"), json!({"mode": "graceful"}).to_string()).await.expect(200);
}

/// A contract of `steps` commands, one after the other, on the first role of `requires`.
pub fn contract(requires: Value, steps: usize) -> Bytes {
    let role = requires[0]["as"].clone();
    let steps: Vec<Value> =
        (1..=steps).map(|at| json!({"id": format!("s{at}"), "uses": role, "run": ["make", "check"]})).collect();
    Bytes::from(json!({"name": "bench", "requires": requires, "steps": steps}).to_string())
}

/// A contract of one command on one board.
pub fn one_step() -> Bytes {
    contract(json!([{"as": "dut", "capability": "board"}]), 1)
}

/// A contract of one command on a node.
pub fn on_node(node: &str, steps: usize) -> Bytes {
    contract(json!([{"as": "dut", "capability": "board", "attrs": {"node": node}}]), steps)
}

/// Submits a run; returns its id.
pub async fn submit(conn: &mut Conn, contract: Bytes, status: u16) -> String {
    conn.post("/v1/runs", contract).await.expect(status).json()["run_id"].as_str().expect("an id").to_owned()
}

pub async fn cancel(conn: &mut Conn, run: &str) {
    conn.post(&format!("/v1/runs/{run}/cancel"), "{}").await.expect(200);
}

/// A step that was claimed: as much of it as an agent needs to report.
#[derive(Deserialize)]
pub struct Claimed {
    run_id: String,
    seq: i64,
    attempt: i64,
    lease: Lease,
}

#[derive(Deserialize)]
struct Lease {
    nonce: String,
}

#[derive(Deserialize)]
struct Reported {
    claim: Option<Claimed>,
}

/// Claims; `None` when there is nothing.
pub async fn claim(conn: &mut Conn, node: &str, wait_seconds: u32) -> Option<Claimed> {
    let path = format!("/v1/nodes/{node}/claim?wait_seconds={wait_seconds}");
    let answer = conn.post(&path, format!(r#"{{"instance":"{INSTANCE}"}}"#)).await;
    claimed(&answer)
}

fn claimed(answer: &Answer) -> Option<Claimed> {
    match answer.status {
        200 => Some(serde_json::from_slice(&answer.body).expect("a claim")),
        204 => None,
        other => panic!("a claim is answered with {other}: {}", String::from_utf8_lossy(&answer.body)),
    }
}

/// Reports that a step ended well; with `and_claim` returns the next.
pub async fn report(conn: &mut Conn, node: &str, step: &Claimed, and_claim: bool) -> Option<Claimed> {
    let Claimed { run_id, seq, attempt, lease } = step;
    let (query, instance) = if and_claim { ("?claim=true", r#","instance":"bench""#) } else { ("", "") };
    let body =
        format!(r#"{{"node_id":"{node}","nonce":"{}","attempt":{attempt},"exit_code":0{instance}}}"#, lease.nonce);
    let answer = conn.post(&format!("/v1/runs/{run_id}/steps/{seq}/result{query}"), body).await.expect(200);
    serde_json::from_slice::<Reported>(&answer.body).expect("an answer").claim
}
