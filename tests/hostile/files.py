"""Artifacts and logs: names are data, never places; only the holder writes, and only so much."""

BAD = "400 invalid-request"
HOLDER = "nonce=<nonce>&attempt=1"


def put(want, name, what=None, query=HOLDER, body="x", **more):
    case(want, what or f"an artifact called {name[:40]}", Request("PUT", f"/v1/runs/<run>/steps/1/artifacts/{name}?{query}", body=body), **more)


ELSEWHERE = "404 not-found, closed"
for name in ["..%2fx", "..%2f..%2f..%2foperator.token", "%2fx", "%2e%2e/x", "../x", "a/../../x", "a/%2e%2e/x", ".", "%2e", "./a", "", "/", "/x", "a/", "a//b", "C:%5cx", "..%5cx", "a%5cb", "%00", "a%00.txt", "%ff", "%zz", "%c0%af"]:
    put(ELSEWHERE, name)
for name in ["a%0ab", "a%0db", "a%1b%5b2J", "%7f", "%c2%9b", "x" * 256, "a/" * 600 + "a", "x" * 4096]:
    put(BAD + ", closed or " + BAD, name)
put(BAD + ", closed", "a", "an artifact without a nonce", "attempt=1")
put(BAD + ", closed", "a", "an artifact without an attempt", "nonce=<nonce>")
put(BAD + ", closed", "a", "an artifact with an empty nonce", "nonce=&attempt=1")
put(BAD + ", closed", "a", "an artifact of attempt 0", "nonce=<nonce>&attempt=0")
put(BAD + ", closed", "a", "an artifact of attempt -1", "nonce=<nonce>&attempt=-1")
put(BAD + ", closed", "a", "an artifact of attempt +1", "nonce=<nonce>&attempt=%2B1")
put(BAD + ", closed", "a", "an artifact with a nonce twice", "nonce=<nonce>&nonce=<nonce>&attempt=1")
put("409 stale-lease, closed", "a", "an artifact with another's nonce", "nonce=x&attempt=1")
put("409 stale-lease, closed", "a", "an artifact of a later attempt", "nonce=<nonce>&attempt=2")
put("409 stale-lease, closed", "a", "an artifact with wildcards for a nonce", "nonce=%25&attempt=1")
case("404 not-found, closed", "an artifact of a run that is not", Request("PUT", "/v1/runs/nobody/steps/1/artifacts/a?" + HOLDER, body="x"))
case("404 not-found, closed or 409 stale-lease, closed", "an artifact of a step that is not", Request("PUT", "/v1/runs/<run>/steps/2/artifacts/a?" + HOLDER, body="x"))
case("409 stale-lease, closed", "an artifact of a question", Request("PUT", "/v1/runs/<ask>/steps/1/artifacts/a?" + HOLDER, body="x"))
head = "PUT /v1/runs/<run>/steps/1/artifacts/big?" + HOLDER + " HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n"
case("413 too-large, closed", "an artifact of 1 TiB, announced", head + "Content-Length: 1099511627776\r\n\r\n", "x" * 1000)
case("413 too-large, closed", "an artifact of 256 MiB and a byte, announced", head + "Content-Length: 268435457\r\n\r\n")
case("413 too-large, closed", "an artifact of 2^63 - 1 bytes, announced", head + "Content-Length: 9223372036854775807\r\n\r\n")
case("nothing", "an artifact of 256 MiB, announced, and hung up", head + "Content-Length: 268435456\r\n\r\n", "x" * 1000, HANG_UP)
case("nothing", "a chunked artifact, and hung up", head + "Transfer-Encoding: chunked\r\n\r\n", "5\r\nabcde\r\n", HANG_UP)
case("400 invalid-request, closed", "a chunked artifact that breaks off", head + "Transfer-Encoding: chunked\r\n\r\n", "5\r\nabcde\r\nz")


def log(want, what, query, body="x"):
    case(want, what, Request("PUT", f"/v1/runs/<run>/steps/1/log?{query}", body=body))


log("409 log-gap", "a log of which the beginning is missing", HOLDER + "&offset=99999999")
log("409 log-gap", "a log at 2^63", HOLDER + "&offset=9223372036854775808")
log("409 log-gap", "a log at 2^64 - 1", HOLDER + "&offset=18446744073709551615")
log("409 log-gap", "a log at 2^64 - 1, so that its end would be at 0", HOLDER + "&offset=18446744073709551615", "x" * 300_000)
for value in ["18446744073709551616", "-1", "x", "1.0", "%2B0", "0x0", "1e0", "%200"]:
    log(BAD + ", closed", f"a log at {value}", HOLDER + f"&offset={value}")
log(BAD + ", closed", "a log without an offset", HOLDER)
log(BAD + ", closed", "a log without a nonce", "attempt=1&offset=0")
log(BAD + ", closed", "a log with an unknown parameter", HOLDER + "&offset=0&truncate=true")
log("409 stale-lease, closed", "a log with another's nonce", "nonce=x&attempt=1&offset=0")
log("409 stale-lease, closed", "a log of a later attempt", "nonce=<nonce>&attempt=2&offset=0")
case("404 not-found, closed", "a log of a run that is a path", Request("PUT", "/v1/runs/..%2f..%2fx/steps/1/log?" + HOLDER + "&offset=0", body="x"))
case("409 not-sealed", "the record of a run that goes on", Request("GET", "/v1/runs/<run>/record"))
for name in ["Range: bytes=0-0", "Range: bytes=-1", "Range: bytes=5-1", "Range: bytes=99999999999999999999-", "Range: bytes=" + ",".join(["0-"] * 1000), "Range: x", "If-Range: x", "If-None-Match: *", "If-Modified-Since: x"]:
    case("200", f"a list with {name[:30]}: ignored", Request("GET", "/v1/nodes?limit=1", name))

# Names that are odd elsewhere, and data here.
for name in ["CON", "NUL.txt", "C:x", "a%20b", "-rf", "~root", "$(id)", "a'b", "%E2%80%AEgnp.exe", "...", "a" * 255, "%3Cimg%20src=x%3E", ".htaccess"]:
    put("204", name, changes=True)
put("400 invalid-request", "CON/x", "a folder where there is a file", changes=True)
