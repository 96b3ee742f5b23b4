"""Bodies of at most 256 KiB where JSON is read: refused before they are read if that was announced, else counted."""

import json

MOST = 262_144
TOO_LARGE = "413 too-large, closed"
GOOD = json.dumps({"requires": [{"as": "dut", "capability": "<capability>"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]})


def padded(size):
    # The place is filled in later.
    return GOOD + " " * (size - len(GOOD) + len("<capability>") - len("hostile-12345678-agent"))


def chunked(body, size):
    """As chunks of so many bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return "".join("%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + "0\r\n\r\n"


HEAD = "POST /v1/runs?dry_run=true HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n"
CHUNKED = HEAD + "Transfer-Encoding: chunked\r\n\r\n"
case("200", "as much as may be", Request("POST", "/v1/runs?dry_run=true", body=padded(MOST)))
case(TOO_LARGE, "a byte more", Request("POST", "/v1/runs", body=padded(MOST + 1)))
case(TOO_LARGE, "a byte more, announced only", HEAD + f"Content-Length: {MOST + 1}\r\n\r\n")
case(TOO_LARGE, "1 MB", Request("POST", "/v1/runs", body=padded(1_000_000)))
case(TOO_LARGE, "7 MB: the answer is still received", Request("POST", "/v1/runs", body=padded(7_000_000)))
case(TOO_LARGE, "1 TB, announced only", HEAD + "Content-Length: 1000000000000\r\n\r\n")
case("400 invalid-contract", "as much as may be, in chunks", CHUNKED.replace("?dry_run=true", ""), chunked(" " * (MOST - 2) + "{}", 65_536))
case(TOO_LARGE, "a byte more, in chunks", CHUNKED, chunked(" " * (MOST - 1) + "{}", 65_536))
case(TOO_LARGE, "1 MB in chunks", CHUNKED, chunked(" " * 1_000_000, 65_536))
case(TOO_LARGE, "chunks that never end", CHUNKED, "ffff\r\n" + " " * 65_535 + "\r\n", *["ffff\r\n" + " " * 65_535 + "\r\n"] * 8)
case(TOO_LARGE, "one chunk of 2^40 bytes, announced, of which 300 KB come", CHUNKED, "10000000000\r\n" + " " * 300_000)
case("400 invalid-contract", "chunks of one byte", CHUNKED, chunked(" " * 3000 + "{}", 1))
case("400 invalid-contract", "a body in 200 pieces", HEAD + "Content-Length: 202\r\n\r\n", *[" "] * 200, "{}")
case("nothing", "fewer bytes than announced, and hung up", HEAD.replace("?dry_run=true", "") + f"Content-Length: {len(GOOD) + 200}\r\n\r\n", GOOD, HANG_UP)
case("nothing", "all bytes but one, and hung up", HEAD.replace("?dry_run=true", "") + "Content-Length: 3\r\n\r\n{}", HANG_UP)
for method, path in [("POST", "/v1/nodes"), ("POST", "/v1/nodes/<agent>/claim"), ("POST", "/v1/runs/<run>/steps/1/result"), ("POST", "/v1/runs/<ask>/steps/1/answer"), ("POST", "/v1/runs/<ask>/cancel"), ("POST", "/v1/runs/<run>/renew"), ("DELETE", "/v1/nodes/<victim>"), ("POST", "/v1/nodes/<victim>/drain"), ("DELETE", "/v1/nodes/<victim>/drain"), ("GET", "/v1/nodes"), ("GET", "/v1/events")]:
    case(TOO_LARGE, f"{method} {path} with 300 KB", Request(method, path, body=" " * 300_000))
case("400 invalid-contract", "no body at all is an empty object", Request("POST", "/v1/runs"))
case("400 invalid-contract", "a length of 0", Request("POST", "/v1/runs", body=""))
