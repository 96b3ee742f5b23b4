"""Queries: each parameter once, only those that are known, and numbers that are numbers."""

BAD = "400 invalid-request"


def get(want, path, what=None):
    case(want, what or path[:60], Request("GET", path))


for query in ["limit=1&limit=1", "limit=1&limit=2", "limit=1&li%6dit=2", "limit=1&unknown=1", "Limit=1", "limit%20=1", "limit%00=1", "=1", "a", "limit=0", "limit=-1", "limit=501", "limit=99999999999999999999", "limit=1.5", "limit=1e2", "limit=0x10", "limit=+5", "limit=%2B5", "limit=%205", "limit=5%20", "limit=5%00", "limit=5;", "limit=%D9%A1", "limit=%zz", "limit=%", "limit=%ff", "limit=NaN", "limit=true", "limit[]=1", "limit=1;cursor=2", "limit=007&x=1", "state=x", "state=running", "state=RUNNING%00", "state=RUNNING,QUEUED", "since=yesterday", "since=0", "since=2026-13-01T00:00:00Z", "since=2026-01-01", "since=99999-01-01T00:00:00Z", "since=2026-01-01T00:00:00Z%00", "token=<token>", "access_token=<token>", "jsonp=x", "callback=alert", "__proto__=1"]:
    get(BAD, f"/v1/runs?{query}")
get(BAD, "/v1/runs?" + "&".join(f"k{n}=1" for n in range(2000)), "2,000 unknown parameters")
get(BAD, "/v1/runs?x=" + "a" * 8000, "an unknown parameter of 8 KB")
get("400 invalid-request or 200", "/v1/runs?cursor=%00", "a cursor of NUL")
get("200 or 400 invalid-request", "/v1/runs?cursor=-1", "a cursor before the first")
for value in ["x", "99999999999999999999", "'", "1;DROP", "a" * 4000]:
    get("400 invalid-request", f"/v1/runs?cursor={value}")
for value in ["-1", "x", "NaN", "nan", "inf", "-inf", "infinity", "1e400", "0x10", "1_0", "1,5", "%00", "--1", "1e", "%D9%A1"]:
    get(BAD, f"/v1/runs/<run>?while=RUNNING&wait_seconds={value}")
    get(BAD, f"/v1/runs/<run>/steps/1/log?wait_seconds={value}")
for value in ["-1", "x", "18446744073709551616", "1.0", "1e3", "%2B1", "0x0", "%201", "-0"]:
    get(BAD, f"/v1/runs/<run>/steps/1/log?offset={value}")
for value in ["0", "-1", "x", "1001", "9223372036854775808", "1.0", "%2B1"]:
    get(BAD, f"/v1/runs/<run>/steps/1/log?attempt={value}")
get("200", "/v1/runs/<run>/steps/1/log?offset=18446744073709551615", "the largest offset: nothing is there, after no time")
get("200", "/v1/runs/<run>/steps/1/log?attempt=2&offset=5", "an attempt that was not yet: nothing is there")
get(BAD, "/v1/runs/<run>?while=running&wait_seconds=1")
get(BAD, "/v1/nodes?state=x")
get(BAD, "/v1/nodes/<node>?x=1")
get(BAD, "/v1/doctor?x")
get(BAD, "/v1/events?run=..")
get(BAD, "/v1/events?run=a%2fb")
get(BAD, "/v1/events?run=<run>&run=<run>")
get(BAD, "/v1/events?last_event_id=1")
get(BAD, "/v1/outbox?state=x")
get(BAD, "/v1/runs/<run>/why?x=1")
get(BAD, "/v1/runs/<run>/record?x=1")
get(BAD, "/v1/asks?who=x")
get("200", "/v1/runs?&&limit=1&", "empty parameters")
get("200", "/v1/runs?limit=1&work='%20OR%201=1--", "SQL in a filter is a text")
get("200", "/v1/runs?limit=1&work=%25&node=_", "wildcards in a filter are texts")
get("200", "/v1/runs?limit=1&work=" + "%41" * 2000, "a long filter")
get("200 or 400 invalid-request", "/v1/runs?limit=1&work=%00%1b", "control characters in a filter")
get("200 or 400, closed or 400 invalid-request", "/v1/runs?limit=1&work=é", "a letter beyond ASCII, not encoded")
for want, path in [(BAD, "/v1/runs?dry_run=yes"), (BAD, "/v1/runs?dry_run=1"), (BAD, "/v1/runs?dry_run=true&dry_run=false"), (BAD, "/v1/runs?dry-run=true"), (BAD, "/v1/runs?dry_run=True"), (BAD, "/v1/runs?dry_run=%74rue&dry%5Frun=true")]:
    case(want, f"POST {path}", Request("POST", path, body={"requires": [{"as": "dut", "capability": "<capability>"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]}))
for value in ["-1", "x", "NaN", "1e400", "1&wait_seconds=2"]:
    case(BAD, f"a claim that waits for {value}", Request("POST", f"/v1/nodes/<agent>/claim?wait_seconds={value}", body={"instance": "<instance>"}))
for query in ["claim=yes", "claim=true&claim=true", "force=true"]:
    case(BAD, f"a result with {query}", Request("POST", f"/v1/runs/<run>/steps/1/result?{query}", body={"node_id": "<agent>", "nonce": "<nonce>", "attempt": 1, "exit_code": 0}))
