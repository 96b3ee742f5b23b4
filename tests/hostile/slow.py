"""Heads, bodies and readers that are slow, or never come: 10 s for a head, 30 s and 1 KiB/s for a body.

An answer to a body that does not come is not needed; that the connection ends is.
"""

HEAD = "closed within 14 s or 408, closed within 14 s"
BODY = "400 invalid-request, closed within 36 s or 408, closed within 36 s or closed within 36 s"
TRICKLE = "400 invalid-request, closed within 36 s or 408, closed within 36 s or closed within 36 s"


def drip(data, every, count):
    """`count` times `data`, with a pause before each."""
    for _ in range(count):
        yield Pause(every)
        yield data


start = "GET /v1/nodes HTTP/1.1\r\nHost: <host>\r\n"
case(HEAD, "nothing at all", b"")
case(HEAD, "one byte", b"G")
case(HEAD, "half a request line", b"GET /v1/no")
case(HEAD, "half a header line", start + "Author")
case(HEAD, "all lines but the empty one", start + "Authorization: Bearer <token>\r\n")
case(HEAD, "all but the last byte", start + "Authorization: Bearer <token>\r\n\r")
case(HEAD, "a line break again and again, and no request", *drip(b"\r\n", 1, 13))
case(HEAD, "a byte of a head each second", start, *drip(b"x", 1, 13))
case(HEAD, "a header line each second", start, *drip(b"X-A: b\r\n", 1, 13))
case(
    "200, closed within 14 s or 200, 408, closed within 14 s",
    "a request, then half a head",
    Request("GET", "/healthz"),
    Pause(0.2),
    b"GET /hea",
)
case("200, 200", "two requests with 15 s between them: idle is not slow", Request("GET", "/healthz"), Pause(15), Request("GET", "/healthz"))
case("200, closed within 70 s", "a request, then nothing: idle for 60 s", Request("GET", "/healthz"), slow=True)

json_head = "POST /v1/runs HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\nContent-Length: 10\r\n\r\n"
put_head = (
    "PUT /v1/runs/<run>/steps/1/{}nonce=<nonce>&attempt=1 HTTP/1.1\r\nHost: <host>\r\n"
    "Authorization: Bearer <token>\r\nContent-Length: 100000\r\n\r\n"
)
log_head, artifact_head = put_head.format("log?offset=99999999&"), put_head.format("artifacts/slow?")
chunked = "POST /v1/runs HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\nTransfer-Encoding: chunked\r\n\r\n"

case(BODY, "a body of 10 bytes, none of which come", json_head)
case(BODY, "2 of 10 bytes", json_head + "{ ")
case(BODY, "a byte of a body each 4 s", json_head, *drip(b" ", 4, 8))
case(BODY, "half a chunk", chunked + "5\r\n{ ")
case(BODY, "half the size of a chunk", chunked + "5")
case(BODY, "chunks without an end, one each second", chunked, *drip(b"1\r\n \r\n", 1, 34))
case(BODY, "the last chunk without its line break", chunked + "2\r\n{}\r\n0\r\n")
case(BODY, "trailers without an end, one each second", chunked + "2\r\n{}\r\n0\r\n", *drip(b"X-A: b\r\n", 1, 34))
case(BODY, "an artifact of which nothing comes", artifact_head)
case(BODY, "an artifact of which 10 bytes come", artifact_head + "0123456789")
case(TRICKLE, "an artifact at 100 B/s: below 1 KiB/s", artifact_head, *drip(b"x" * 100, 1, 35))
case("400 invalid-request, closed or 409 log-gap, closed or closed within 36 s or 408, closed", "a log at 100 B/s: below 1 KiB/s", log_head, *drip(b"x" * 100, 1, 35))
case("401 unauthorized, closed", "a body that never comes, without a token: answered at once", json_head.replace("Bearer <token>", "Bearer x"))
case("404 not-found, closed", "a body that never comes, to nowhere: answered at once", json_head.replace("/v1/runs", "/v1/no"))

# What is slow and yet decent is served.
case("400 invalid-contract", "a body in ten pieces within 3 s", json_head, *drip(b" ", 0.3, 8), b"{}")
case("200", "a head in twenty pieces within 4 s", start, *drip(b"X-A: b\r\n", 0.2, 20), b"Authorization: Bearer <token>\r\n\r\n")

# Who goes in the middle has done nothing.
case("nothing", "hung up in the middle of a head", start, HANG_UP)
case("nothing", "hung up in the middle of a body", json_head + "{", HANG_UP)
case("nothing", "hung up in the middle of a chunk", chunked + "ff\r\n{", HANG_UP)
case("nothing", "hung up in the middle of an artifact", artifact_head + "x" * 5000, HANG_UP)
