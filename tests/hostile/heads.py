"""Heads of at most 16 KiB and 64 lines."""

TOO_MUCH = "431, closed"

# Host and Authorization are two of the lines.
case("200", "64 lines", Request("GET", "/v1/nodes?limit=1", *[f"X-{n}: a" for n in range(62)]))
case(TOO_MUCH, "65 lines", Request("GET", "/v1/nodes", *[f"X-{n}: a" for n in range(63)]))
case(TOO_MUCH, "100 lines", Request("GET", "/v1/nodes", *[f"X-{n}: a" for n in range(98)]))
case(TOO_MUCH, "2,000 lines", Request("GET", "/v1/nodes", *[f"X-{n}: a" for n in range(2000)]))
case(TOO_MUCH, "the same line 1,000 times", Request("GET", "/v1/nodes", *["X: a"] * 1000))
case(TOO_MUCH, "1,000 cookies", Request("GET", "/v1/nodes", *["Cookie: a=b"] * 1000))
case(TOO_MUCH, "empty lines' worth of names", Request("GET", "/v1/nodes", *["X:"] * 70))
case("200", "a value of 15 KiB", Request("GET", "/v1/nodes?limit=1", "X: " + "a" * 15_360))
case(TOO_MUCH, "a value of 17 KiB", Request("GET", "/v1/nodes", "X: " + "a" * 17_408))
case(TOO_MUCH, "a value of 1 MiB", Request("GET", "/v1/nodes", "X: " + "a" * (1 << 20)))
case(TOO_MUCH, "20 values of 1 KiB", Request("GET", "/v1/nodes", *["X: " + "a" * 1024] * 20))
case("200 or 400, closed or 431, closed", "a name of 8 KiB", Request("GET", "/v1/nodes?limit=1", "X" * 8192 + ": a"))
case(TOO_MUCH + " or 400, closed", "a name of 17 KiB", Request("GET", "/v1/nodes", "X" * 17_408 + ": a"))
case(TOO_MUCH + " or 400, closed", "a method of 17 KiB", Request("X" * 17_408, "/v1/nodes"))
case(TOO_MUCH, "17 KiB in pieces", "GET /v1/nodes HTTP/1.1\r\nHost: <host>\r\n", *["X: " + "a" * 1000 + "\r\n"] * 17, "\r\n")
case(TOO_MUCH, "17 KiB that never end", "GET /v1/nodes HTTP/1.1\r\nHost: <host>\r\nX: ", "a" * 17_408)
case("200, 431, closed", "a good one, then one that is too long", Request("GET", "/healthz"), Request("GET", "/healthz", "X: " + "a" * 17_408))
case("431, closed", "one that is too long, then a good one: not reached", Request("GET", "/healthz", "X: " + "a" * 17_408), Request("DELETE", "/v1/nodes/<victim>"))
case("431, closed", "65 lines, then a good one: not reached", Request("GET", "/healthz", *[f"X-{n}: a" for n in range(65)]), Request("DELETE", "/v1/nodes/<victim>"))
