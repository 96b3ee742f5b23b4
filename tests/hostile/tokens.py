"""Tokens: one, in `Authorization: Bearer`, whole and exact; asked for before anything else but Host."""

NO = "401 unauthorized"


def token(want, what, *lines, path="/v1/nodes?limit=1", method="GET", body=None):
    case(want, what, Request(method, path, *lines, token=None, body=body))


token("200", "as it should be", "Authorization: Bearer <token>")
token("200", "the scheme in lower case", "authorization: bearer <token>")
token(NO, "none")
for value in ["", "Bearer", "Bearer ", "<token>", "Bearer:<token>", "Bearer=<token>", "Bearer\t<token>", "Basic <token>", "Basic b3BlcmF0b3I6b3BlcmF0b3I=", "Digest <token>", "Token <token>", "BearerX <token>", "Bearer <token>x", "Bearer x<token>", "Bearer <token> x", "Bearer <token>,", "Bearer <token>, Bearer <token>", "Bearer <token>;", 'Bearer "<token>"', "Bearer '<token>'", "Bearer <<token>>", "Bearer Bearer <token>", "Bearer token=<token>", "Bearer x", "Bearer mdt_operator_", "Bearer null", "Bearer undefined", "Bearer *", "Bearer %00", "Bearer ' OR 1=1--", "Bearer ../operator.token", "Bearer é", "Bearer " + "x" * 8000, "Bearer " + "mdt_" * 2000, "Bearer mdt_operator_" + "0" * 52, "Bearer mdt_operator_" + "é" * 26, "Bearer ______"]:
    token(NO, f"Authorization: {value[:50]}", f"Authorization: {value}")
token(NO, "two, both right", "Authorization: Bearer <token>", "Authorization: Bearer <token>")
token(NO, "two, the first right", "Authorization: Bearer <token>", "Authorization: Bearer x")
token(NO, "two, the second right", "Authorization: Bearer x", "Authorization: Bearer <token>")
token(NO, "a right one and an empty one", "Authorization: Bearer <token>", "Authorization:")
token(NO, "in Proxy-Authorization", "Proxy-Authorization: Bearer <token>")
token(NO, "in a cookie", "Cookie: token=<token>; Authorization=Bearer <token>")
token(NO, "in X-Authorization", "X-Authorization: Bearer <token>", "X-Api-Key: <token>")
token(NO, "with an underscore", "HTTP_AUTHORIZATION: Bearer <token>")
token(NO, "in the query", path="/v1/nodes?access_token=<token>")
token("401 unauthorized or 421 wrong-host", "in the address", path="http://operator:<token>@<host>/v1/nodes")
token("400, closed", "NUL behind it", "Authorization: Bearer <token>\0")
token("200 or 401 unauthorized", "two spaces before it", "Authorization: Bearer  <token>")
token("200 or 401 unauthorized", "spaces around it", "Authorization:    Bearer <token>   ")
for path in ["/v1/doctor", "/v1/events", "/v1/runs/<run>", "/v1/runs/<run>/record", "/v1/outbox", "/v1/idempotency/x", "/nothing", "/v1/../healthz", "/healthz/../v1/nodes", "/v1/nodes/%2e%2e", "/healthz%2f..%2fv1%2fnodes", "//healthz"]:
    token(NO, f"none, for {path}", path=path)
for method, path, body in [("POST", "/v1/runs", "{"), ("POST", "/v1/nodes", "x" * 1000), ("DELETE", "/v1/nodes/<victim>", "{}"), ("PUT", "/v1/runs/<run>/steps/1/log", "x"), ("FOO", "/v1/runs", "x"), ("POST", "/v1/runs/<ask>/cancel", "{}")]:
    token(NO + ", closed", f"none, for {method} {path}, before anything is read", path=path, method=method, body=body)
token(NO + ", closed", "none, and a body of 1 MB", path="/v1/runs", method="POST", body="x" * 1_000_000)
case(NO + ", closed", "none, and 1 TB announced", "POST /v1/runs HTTP/1.1\r\nHost: <host>\r\nContent-Length: 1000000000000\r\n\r\n")
token("200", "none, where none is asked for", path="/healthz")
token("200", "a wrong one, where none is asked for", "Authorization: Bearer x", path="/readyz")
