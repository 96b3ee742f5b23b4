"""Where a request ends: what two readers could understand differently is refused, never repaired.

Behind each refused one comes a whole request that would remove a node. It must never be reached: there is one answer,
and the connection ends.
"""

REFUSED = "400, closed"
VICTIM = Request("DELETE", "/v1/nodes/<victim>")
AFTER = Request("GET", "/healthz")
AUTH = "Host: <host>\r\nAuthorization: Bearer <token>\r\n"


def raw(lines, line="POST /v1/runs HTTP/1.1"):
    """A head with these lines as they are, all line breaks included."""
    return line + "\r\n" + AUTH + lines + "\r\n"


def refused(what, lines, body="", want=REFUSED, line="POST /v1/runs HTTP/1.1"):
    case(want, what, raw(lines, line), body, VICTIM)


# Lengths.
refused("two different lengths", "Content-Length: 2\r\nContent-Length: 3\r\n", "{} ")
refused("two different lengths, the other way round", "Content-Length: 3\r\nContent-Length: 2\r\n", "{} ")
refused("two equal lengths", "Content-Length: 2\r\nContent-Length: 2\r\n", "{}")
refused("three equal lengths", "Content-Length: 2\r\n" * 3, "{}")
refused("two equal lengths, far apart", "Content-Length: 2\r\nX-A: b\r\ncontent-length: 2\r\n", "{}")
refused("two equal lengths in one line", "Content-Length: 2, 2\r\n", "{}")
refused("two different lengths in one line", "Content-Length: 2, 3\r\n", "{} ")
refused("a length with a plus", "Content-Length: +2\r\n", "{}")
refused("a length in hexadecimal", "Content-Length: 0x2\r\n", "{}")
refused("a negative length", "Content-Length: -1\r\n")
refused("a negative zero", "Content-Length: -0\r\n")
refused("a length with a fraction", "Content-Length: 2.0\r\n", "{}")
refused("a length with an exponent", "Content-Length: 2e0\r\n", "{}")
refused("a length with a unit", "Content-Length: 2b\r\n", "{}")
refused("a length with a space inside", "Content-Length: 2 0\r\n", "{}")
refused("a length with a semicolon", "Content-Length: 2;\r\n", "{}")
refused("a length in quotes", 'Content-Length: "2"\r\n', "{}")
refused("a length in full-width digits", "Content-Length: ２\r\n", "{}")
refused("an underscore in a length", "Content-Length: 0_2\r\n", "{}")
refused("an empty length", "Content-Length:\r\n")
refused("a word as a length", "Content-Length: none\r\n")
refused("a length of 2^64 - 1", "Content-Length: 18446744073709551615\r\n", want="400, closed or 413, closed or 431, closed")
refused("a length of 2^64", "Content-Length: 18446744073709551616\r\n", want="400, closed or 413, closed")
refused("a length of 2^64 + 2", "Content-Length: 18446744073709551618\r\n", "{}", want="400, closed or 413, closed")
refused("a length of 2^63", "Content-Length: 9223372036854775808\r\n", want="400, closed or 413, closed")
refused("a length of 40 digits", "Content-Length: " + "9" * 40 + "\r\n", want="400, closed or 413, closed")
refused("a space before the colon of a length", "Content-Length : 2\r\n", "{}")
refused("a tab before the colon of a length", "Content-Length\t: 2\r\n", "{}")
refused("a folded length", "Content-Length:\r\n 2\r\n", "{}")
refused("a vertical tab before a length", "Content-Length: \x0b2\r\n", "{}")
refused("a NUL behind a length", "Content-Length: 2\x00\r\n", "{}")

# Codings.
refused("length, then chunked", "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n")
refused("chunked, then length", "Transfer-Encoding: chunked\r\nContent-Length: 12\r\n", "2\r\n{}\r\n0\r\n\r\n")
refused("chunked with a length of 0", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n")
refused("chunked with two lengths", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n")
refused("chunked with a wrong length", "Transfer-Encoding: chunked\r\nContent-Length: +1\r\n", "0\r\n\r\n")
refused("xchunked", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")
refused("chunkedx", "Transfer-Encoding: chunkedx\r\n", "0\r\n\r\n")
refused("chunked, identity", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n")
refused("identity", "Transfer-Encoding: identity\r\n", "0\r\n\r\n")
refused("identity with a length", "Transfer-Encoding: identity\r\nContent-Length: 2\r\n", "{}")
refused("an empty coding", "Transfer-Encoding:\r\n", "0\r\n\r\n")
refused("an empty coding with a length", "Transfer-Encoding:\r\nContent-Length: 2\r\n", "{}")
CODING = "400, closed or 501, closed or 415 unsupported-media-type, closed"
refused("gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n", CODING)
refused("identity, chunked", "Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n", CODING)
refused("chunked twice in one line", "Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n", CODING)
refused("chunked twice in two lines", "Transfer-Encoding: chunked\r\n" * 2, "0\r\n\r\n", CODING)
refused("identity, then chunked in two lines", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", CODING)
refused("chunked, then identity in two lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n", CODING)
refused("a comma behind chunked", "Transfer-Encoding: chunked,\r\n", "0\r\n\r\n", CODING)
refused("a comma before chunked", "Transfer-Encoding: ,chunked\r\n", "0\r\n\r\n", CODING)
refused("chunked with a parameter", "Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n", CODING)
refused("chunked in quotes", 'Transfer-Encoding: "chunked"\r\n', "0\r\n\r\n", CODING)
refused("a vertical tab before chunked", "Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n", CODING)
refused("chunked in a foreign k", "Transfer-Encoding: chun\u212aed\r\n", "0\r\n\r\n", CODING)
refused("a space before the colon of a coding", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n")
refused("a folded coding", "Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n")
refused("a coding in a folded line", "X-A: b\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n")
refused("chunked with HTTP/1.0", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", line="POST /v1/runs HTTP/1.0")
refused("chunked on a GET, with a length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n", line="GET /v1/nodes HTTP/1.1")

# Lines.
refused("a folded line", "X-A: b\r\n c\r\n")
refused("a folded line with a tab", "X-A: b\r\n\tc\r\n")
refused("a line of a space", "X-A: b\r\n \r\n")
refused("a name with a space before it, first", " X-A: b\r\n", line="POST /v1/runs HTTP/1.1\r\n X-B: c")
refused("a name with a space inside", "X A: b\r\n")
refused("no name", ": b\r\n")
refused("no colon", "X-A\r\n")
refused("a name in parentheses", "(X-A): b\r\n")
refused("a name with a letter beyond ASCII", "X-É: b\r\n")
refused("NUL in a name", "X-\x00A: b\r\n")
refused("NUL in a value", "X-A: b\x00c\r\n")
refused("an escape in a value", "X-A: b\x1b[2Jc\r\n")
refused("DEL in a value", "X-A: b\x7fc\r\n")
refused("a bare CR in a value", "X-A: b\rContent-Length: 5\r\n")
refused("a bare CR behind a name", "X-A\r: b\r\n")
refused("two CRs at the end of a line", "X-A: b\r\r\n")
refused("lines that end in CR", "X-A: b\rX-C: d\r\r")
case(REFUSED, "bare LF behind a header line", raw("X-A: b\nX-C: d\r\n"), VICTIM)
case(REFUSED, "bare LF behind the request line", "GET /healthz HTTP/1.1\nHost: <host>\r\n\r\n", VICTIM)
case(REFUSED, "bare LF as the empty line", "GET /healthz HTTP/1.1\r\nHost: <host>\r\n\n", VICTIM)
case(REFUSED, "bare LF everywhere", "GET /healthz HTTP/1.1\nHost: <host>\n\n", VICTIM)
case(REFUSED, "a length that bare LF hides from others", raw("X-A: b\nContent-Length: 2\r\n"), "{}", VICTIM)
case(REFUSED, "a coding that bare LF hides from others", raw("X-A: b\nTransfer-Encoding: chunked\r\n"), "0\r\n\r\n", VICTIM)

# The first line.
for what, line in [
    ("two spaces in the first line", "GET  /healthz HTTP/1.1"),
    ("a tab in the first line", "GET\t/healthz HTTP/1.1"),
    ("a space at the end of the first line", "GET /healthz HTTP/1.1 "),
    ("a space in the path", "GET /heal thz HTTP/1.1"),
    ("a space before the method", " GET /healthz HTTP/1.1"),
    ("NUL in the method", "G\x00T /healthz HTTP/1.1"),
    ("NUL in the path", "GET /health\x00z HTTP/1.1"),
    ("an escape in the path", "GET /health\x1bz HTTP/1.1"),
    ("no path", "GET HTTP/1.1"),
    ("no method", "/healthz HTTP/1.1"),
    ("a bare CR in the path", "GET /health\rz HTTP/1.1"),
]:
    case(REFUSED, what, line + "\r\n" + AUTH + "\r\n", VICTIM)
for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/3", "HTTP/1.1.1", "HTTP/01.1", "HTTP/1.10", "http/1.1", "HTTP 1.1", "ICY/1.1", "HTTP/"]:
    case("400, closed or 505, closed", f"version {version}", f"GET /healthz {version}\r\n" + AUTH + "\r\n", VICTIM)
case("400, closed or 505, closed", "no version, as HTTP/0.9 had it", "GET /healthz\r\n", VICTIM)

# Chunks.
def chunks(what, body, want="400 invalid-request, closed", after=VICTIM):
    case(want, what, raw("Transfer-Encoding: chunked\r\n"), body, after)

chunks("a size that is no number", "g\r\n{}\r\n0\r\n\r\n")
chunks("no size", "\r\n{}\r\n0\r\n\r\n")
chunks("a size with 0x", "0x2\r\n{}\r\n0\r\n\r\n")
chunks("a size with a plus", "+2\r\n{}\r\n0\r\n\r\n")
chunks("a negative size", "-2\r\n{}\r\n0\r\n\r\n")
chunks("a size with a space before it", " 2\r\n{}\r\n0\r\n\r\n")
chunks("a size with a space inside", "0 2\r\n{}\r\n0\r\n\r\n")
chunks("a size with a dot", "2.0\r\n{}\r\n0\r\n\r\n")
chunks("a size with an underscore", "0_2\r\n{}\r\n0\r\n\r\n")
chunks("a size of 17 digits", "10000000000000002\r\n{}\r\n0\r\n\r\n")
chunks("a size of 2^64 - 1", "ffffffffffffffff\r\n{}\r\n0\r\n\r\n", "400 invalid-request, closed within 36 s or 413 too-large, closed within 36 s")
chunks("a size with bare LF", "2\n{}\r\n0\r\n\r\n")
chunks("a size with bare CR", "2\r{}\r\n0\r\n\r\n")
chunks("a size with two CRs", "2\r\r\n{}\r\n0\r\n\r\n")
chunks("NUL behind a size", "2\x00\r\n{}\r\n0\r\n\r\n")
chunks("data longer than its size", "1\r\n{}\r\n0\r\n\r\n")
chunks("data shorter than its size", "3\r\n{}\r\n0\r\n\r\n")
chunks("bare LF behind data", "2\r\n{}\n0\r\n\r\n")
chunks("no line break behind data", "2\r\n{}0\r\n\r\n")
chunks("bare LF behind the last chunk", "2\r\n{}\r\n0\n\r\n")
chunks("bare LF as the last line", "2\r\n{}\r\n0\r\n\n")
chunks("bare LF in an extension", "2;a\nb\r\n{}\r\n0\r\n\r\n")
chunks("an extension of 20 KiB", "2;a=" + "b" * 20480 + "\r\n{}\r\n0\r\n\r\n")
chunks("extensions of 40 KiB in many chunks", ("1;" + "a" * 400 + "\r\n \r\n") * 100 + "0\r\n\r\n")
chunks("trailers of 20 KiB", "2\r\n{}\r\n0\r\nX-A: " + "b" * 20480 + "\r\n\r\n")
chunks("a thousand trailers", "2\r\n{}\r\n0\r\n" + "X-A: b\r\n" * 1000 + "\r\n")
chunks("a trailer without a colon", "2\r\n{}\r\n0\r\nX-A\r\n\r\n")
chunks("the next request in the place of trailers", "2\r\n{}\r\n0\r\n")
# These are as they should be: the next request is reached.
chunks("a plain chunk", "2\r\n{}\r\n0\r\n\r\n", "400 invalid-contract, 200", AFTER)
chunks("a size with zeros before it", "0000002\r\n{}\r\n0\r\n\r\n", "400 invalid-contract, 200", AFTER)
chunks("an upper-case size", "A\r\n{        }\r\n0\r\n\r\n", "400 invalid-contract, 200", AFTER)
chunks("an extension", "2;a=b\r\n{}\r\n0;c\r\n\r\n", "400 invalid-contract, 200", AFTER)
chunks("a trailer", "2\r\n{}\r\n0\r\nX-A: b\r\n\r\n", "400 invalid-contract, 200", AFTER)
chunks("a trailer that would be a length", "2\r\n{}\r\n0\r\nContent-Length: 100\r\n\r\n", "400 invalid-contract, 200 or 400, closed", AFTER)
chunks("a trailer that would be a token", "2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n", "400 invalid-contract, 200", AFTER)
case("401 unauthorized, closed", "a token that comes as a trailer", "POST /v1/runs HTTP/1.1\r\nHost: <host>\r\nTransfer-Encoding: chunked\r\n\r\n", "2\r\n{}\r\n0\r\nAuthorization: Bearer <token>\r\n\r\n", VICTIM)
case("400 invalid-contract, 200", "chunked in upper case", raw("Transfer-Encoding: CHUNKED\r\n"), "2\r\n{}\r\n0\r\n\r\n", AFTER)
case("400 invalid-contract, 200", "two requests in one piece", raw("Content-Length: 2\r\n") + "{}GET /healthz HTTP/1.1\r\nHost: <host>\r\n\r\n")
case("400 invalid-contract, 200", "line breaks between two requests", raw("Content-Length: 2\r\n") + "{}\r\n\r\n", AFTER)

# A body that nobody asked for, and bodies that look like requests.
case("200, quiet or 200, closed", "the body of a GET is a request: it is not done", Request("GET", "/v1/nodes", body="DELETE /v1/nodes/<victim> HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n\r\n"))
case("401 unauthorized, closed", "the body of a refused one is a request: it is not done", Request("POST", "/v1/runs", token=None, body="DELETE /v1/nodes/<victim> HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n\r\n"))
case("413 too-large, closed", "the body of one that is too large is a request: it is not done", raw("Content-Length: 10000000\r\n"), VICTIM)
case("404 not-found, closed", "the body of one to nowhere is a request: it is not done", Request("POST", "/v1/no", body="DELETE /v1/nodes/<victim> HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n\r\n"))
case("400 invalid-contract, 400, closed", "a length that is too small: the rest is no request", raw("Content-Length: 2\r\n"), "{} {}\r\n\r\n", VICTIM)
