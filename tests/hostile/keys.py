"""Idempotency keys: 1 to 255 visible characters without quote, backslash, comma and semicolon, in one line.

`scripts/conformance` checks what they do; here is what they may not be, on every kind of route.
"""

BAD = [
    ("an empty value", "Idempotency-Key:"), ("white space", "Idempotency-Key:  \t "), ("an empty string", 'Idempotency-Key: ""'), ("one quote", 'Idempotency-Key: "'), ("an open string", 'Idempotency-Key: "a'), ("a string that is not opened", 'Idempotency-Key: a"'),
    ("a quote inside", 'Idempotency-Key: "a"b"'), ("an escaped quote", 'Idempotency-Key: "a\\"b"'), ("a parameter", 'Idempotency-Key: "a";p=1'), ("a list", "Idempotency-Key: a,b"), ("a list of strings", 'Idempotency-Key: "a", "b"'), ("white space inside", "Idempotency-Key: a b"),
    ("white space in a string", 'Idempotency-Key: "a b"'), ("a tab inside", "Idempotency-Key: a\tb"), ("beyond ASCII", "Idempotency-Key: café"), ("a zero-width space", "Idempotency-Key: a\u200bb"), ("256 characters", "Idempotency-Key: " + "k" * 256), ("8 KiB", "Idempotency-Key: " + "k" * 8192),
    ("two lines", "Idempotency-Key: a\r\nIdempotency-Key: a"), ("two lines, one empty", "Idempotency-Key: a\r\nIdempotency-Key:"), ("two spellings", "Idempotency-Key: a\r\nidempotency-key: b"), ("a token of structured fields", "Idempotency-Key: :YQ==:;a"),
]
CONTRACT = {"requires": [{"as": "dut", "capability": "<capability>"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]}
ROUTES = [
    ("a submission", "POST", "/v1/runs", CONTRACT), ("a cancel", "POST", "/v1/runs/<ask>/cancel", {}), ("an answer", "POST", "/v1/runs/<ask>/steps/1/answer", {"answer": "yes"}), ("a removal", "DELETE", "/v1/nodes/<victim>", None),
    ("a drain", "POST", "/v1/nodes/<victim>/drain", {"mode": "graceful"}), ("an advert", "POST", "/v1/nodes", {"node_id": "<tag>-evil", "static": True, "capabilities": []}), ("a claim", "POST", "/v1/nodes/<agent>/claim", {"instance": "<instance>"}),
    ("a result", "POST", "/v1/runs/<run>/steps/1/result", {"node_id": "<agent>", "nonce": "<nonce>", "attempt": 1, "exit_code": 0}), ("a log", "PUT", "/v1/runs/<run>/steps/1/log?nonce=<nonce>&attempt=1&offset=0", b"x"), ("an artifact", "PUT", "/v1/runs/<run>/steps/1/artifacts/k?nonce=<nonce>&attempt=1", b"x"),
]
for number, (what, line) in enumerate(BAD):
    for at, (route, method, path, body) in enumerate(ROUTES):
        # All of them on a submission, and each of them on one route more.
        if at == 0 or at == 1 + number % (len(ROUTES) - 1):
            want = "400 invalid-request" + ("" if body is None else ", closed")
            case(want, f"{what}, on {route}", Request(method, path, line, body=body))
case("400, closed", "NUL in a key", Request("POST", "/v1/runs", "Idempotency-Key: a\0b", body=CONTRACT))
case("400 invalid-contract", "a key with a bad contract: not kept", Request("POST", "/v1/runs", "Idempotency-Key: <tag>-bad", body="{}"))
case("200", "a key that is asked for without having been used", Request("GET", "/v1/idempotency/<tag>-bad"))
case("200 or 404 not-found or 400 invalid-request", "a key of 8 KiB that is asked for", Request("GET", "/v1/idempotency/" + "k" * 8000))
