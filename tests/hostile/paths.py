"""Addresses: matched as received, decoded once and by segment; what decodes to a separator is not one."""

NOT_FOUND = "404 not-found"
# Refused before it is an address.
BROKEN = "404 not-found or 400, closed or 400 invalid-request or 421 wrong-host"

for path in [
    "/", "/v1", "/v1/", "/v2/nodes", "/V1/nodes", "/v1/Nodes", "/v1/nodes/", "//v1/nodes", "/v1//nodes", "/v1/nodes//<node>", "/./v1/nodes", "/v1/./nodes", "/v1/nodes/.", "/v1/nodes/..", "/v1/nodes/../doctor",
    "/v1/nodes/../../v1/doctor", "/v1/nodes/%2e", "/v1/nodes/%2e%2e", "/v1/nodes/%2E%2E/doctor", "/v1/nodes/.%2e", "/v1/nodes/%252e%252e", "/v1/nodes/..;/doctor", "/v1/nodes;x=y", "/v1/nodes/<node>;x", "/v1%2fnodes", "/v1/nodes%2f<node>", "/v1/nodes%2F<node>",
    "/v1/nodes/%2f", "/v1/nodes/a%2fb", "/v1/nodes/a%5cb", "/v1/nodes/%5c..%5c", "/v1/nodes/%00", "/v1/nodes/<node>%00", "/v1/nodes/<node>%00.json", "/v1/nodes/%zz", "/v1/nodes/%", "/v1/nodes/%4", "/v1/nodes/%u002f", "/v1/nodes/%c0%af", "/v1/nodes/%c0%ae%c0%ae",
    "/v1/nodes/%ff", "/v1/nodes/%ed%a0%80", "/v1/nodes/%e2%80%ae", "/v1/nodes/%0d%0aX-A:%20b", "/v1/nodes/%0a", "/v1/nodes/%1b%5b2J", "/v1/nodes/%7f", "/v1/nodes/%20<node>", "/v1/nodes/<node>%20", "/v1/nodes/+", "/v1/nodes/<node>+", "/v1/nodes/é", "/v1/nodes/" + "x" * 65, "/v1/nodes/" + "x" * 8000, "/v1/nodes/" + "%41" * 4000,
    "/" + "a/" * 4000, "/v1/nodes/'%20OR%201=1--", "/v1/runs/../../etc/passwd", "/v1/runs/..%2f..%2foperator.token", "/v1/runs/%2e%2e%2foperator.token/record", "/v1/runs/<run>/artifacts/..%2f..%2f..%2foperator.token", "/v1/runs/<run>/artifacts/../../../operator.token", "/v1/runs/<run>/artifacts/%2e%2e/%2e%2e/operator.token",
    "/v1/runs/<run>/artifacts/..", "/v1/runs/<run>/artifacts/%2fetc%2fpasswd", "/v1/runs/<run>/artifacts/", "/v1/runs/<run>/artifacts//etc/passwd", "/v1/runs/<run>/artifacts/a", "/v1/runs/<run>/artifacts/%00", "/v1/runs/<run>/artifacts/a%00b", "/v1/runs/<run>/steps/0/log", "/v1/runs/<run>/steps/501/log", "/v1/runs/<run>/steps/-1/log",
    "/v1/runs/<run>/steps/+1/log", "/v1/runs/<run>/steps/01/log", "/v1/runs/<run>/steps/1.0/log", "/v1/runs/<run>/steps/%31%20/log", "/v1/runs/<run>/steps/1e0/log", "/v1/runs/<run>/steps/0x1/log", "/v1/runs/<run>/steps/99999999999999999999/log", "/v1/runs/<run>/steps/work/log", "/v1/runs/<run>/steps/١/log",
    "/v1/idempotency/", "/v1/idempotency/a/b", "/.git/config", "/.env", "/operator.token", "/mediator.db", "/url", "/metrics/../v1/doctor", "/favicon.ico", "/index.php", "/cgi-bin/test", "/robots.txt",
]:
    case(NOT_FOUND, path[:60], Request("GET", path))
for path in ["/v1/nodes", "/v1/no", "/nothing", "/v1/nodes/..", "/v1/nodes/%00", "/v1/runs/<run>/record", "/%2e%2e", "/healthz/"]:
    case("401 unauthorized", f"{path} without a token", Request("GET", path, token=None))
case("200", "escapes of plain letters", Request("GET", "/v1/n%6fdes?limit=1"))
case("200", "a node by escapes", Request("GET", "/v1/nodes/%68<node>".replace("%68<node>", "<node>")))
case("200", "a key with a slash, where it is allowed", Request("GET", "/v1/idempotency/a%2Fb"))
case("200 or 400", "a key of two dots", Request("GET", "/v1/idempotency/%2e%2e"))
case("200 or 400 or 404", "a key with a control character", Request("GET", "/v1/idempotency/%00%1b"))
case("200 or 400 or 404 not-found", "a fragment", Request("GET", "/v1/nodes/<node>#/drain"))
case(BROKEN, "a backslash", Request("GET", "/v1\\nodes"))
case(BROKEN, "a path that does not begin with a slash", Request("GET", "v1/nodes"))
case(BROKEN, "two dots without a slash", Request("GET", ".."))
case(BROKEN, "bytes that are no UTF-8", b"GET /v1/nodes/\xff\xfe HTTP/1.1\r\nHost: <host>\r\nAuthorization: Bearer <token>\r\n\r\n")
case(BROKEN, "quotes and braces", Request("GET", '/v1/nodes/"{}|^`<>'))
case("431, closed or 414, closed", "a path of 17 KiB", Request("GET", "/v1/nodes/" + "x" * 17_000))
case("431, closed or 414, closed", "a path of 70 KiB", Request("GET", "/v1/nodes/" + "x" * 70_000))
case(BROKEN, "* as a target", Request("GET", "*"))
case("404 not-found or 405 method-not-allowed or 400, closed", "OPTIONS *", Request("OPTIONS", "*"))

# Methods.
NO_METHOD = "405 method-not-allowed"
for method in ["PUT", "PATCH", "DELETE", "TRACE", "HEAD", "OPTIONS", "PROPFIND", "MKCOL", "MOVE", "COPY", "LOCK", "SEARCH", "PURGE", "FOO", "get", "Get", "GETT", "G", "X" * 500, "G%45T", "!#$%&'*+-.^_`|~"]:
    case("405" if method == "HEAD" else NO_METHOD, f"{method[:20]} where there is GET and POST", Request(method, "/v1/nodes"))
for method in ["GET", "PUT", "POST"]:
    case(NO_METHOD, f"{method} to a drain or a removal", Request(method, "/v1/nodes/<victim>/drain" if method != "POST" else "/v1/nodes/<victim>"))
case(NO_METHOD, "DELETE of all runs", Request("DELETE", "/v1/runs"))
case(NO_METHOD, "DELETE of a run", Request("DELETE", "/v1/runs/<run>"))
case("404 not-found", "TRACE of nothing", Request("TRACE", "/nothing", "Cookie: secret=1"))
case("405 method-not-allowed", "another method in a header", Request("PUT", "/v1/nodes/<victim>", "X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE"))
case("400, closed or 404 not-found or 405 method-not-allowed or 421 wrong-host", "CONNECT", Request("CONNECT", "evil.example:443"))
case("400, closed or 404 not-found or 405 method-not-allowed or 421 wrong-host", "CONNECT to ourselves", Request("CONNECT", "<host>"))
case("400, closed or 404 not-found or 405 method-not-allowed", "CONNECT with a path", Request("CONNECT", "/v1/nodes"))
case("400, closed", "a method with a space before it", b" GET /v1/nodes HTTP/1.1\r\nHost: <host>\r\n\r\n")
case("400, closed", "a method with a colon", b"GE:T /v1/nodes HTTP/1.1\r\nHost: <host>\r\n\r\n")
case("400, closed", "a method beyond ASCII", "GÉT /v1/nodes HTTP/1.1\r\nHost: <host>\r\n\r\n")
