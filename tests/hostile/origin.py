"""Pages in a browser on the same machine: refused by Origin and Sec-Fetch-Site, and never let in by CORS."""

REFUSED = "403 forbidden"
# A browser sends no token by itself: refused for one reason or the other.
EITHER = "403 forbidden or 401 unauthorized or 421 wrong-host"


def origin(want, what, *lines, method="GET", path="/v1/nodes?limit=1", **more):
    case(want, what, Request(method, path, *lines, **more))


origin("200", "our own Origin", "Origin: http://<host>")
origin("200", "our own Origin by another name", "Origin: http://localhost:<port>")
origin("200", "Sec-Fetch-Site: none", "Sec-Fetch-Site: none")
origin("200", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: same-origin")
for value in ["http://evil.example", "https://evil.example", "http://evil.example:<port>", "null", "http://localhost:1", "http://127.0.0.1:1", "http://127.0.0.1", "http://127.0.0.1:<port>.evil.example", "http://localhost.evil.example:<port>", "http://evil.example@127.0.0.1:<port>", "chrome-extension://abcdef", "file://", "127.0.0.1:<port>", "http://127.0.0.1:<port>/", "http://127.0.0.1:<port>, http://evil.example", "*", "", "http://0.0.0.0:<port>", "http://[::]:<port>"]:
    origin(REFUSED, f"Origin: {value}", f"Origin: {value}")
origin("403 forbidden or 400 invalid-request", "two Origins", "Origin: http://<host>", "Origin: http://evil.example")
for value in ["cross-site", "same-site"]:
    origin(REFUSED, f"Sec-Fetch-Site: {value}", f"Sec-Fetch-Site: {value}")
    origin(REFUSED, f"Sec-Fetch-Site: {value} with our own Origin", f"Sec-Fetch-Site: {value}", "Origin: http://<host>")
    origin(REFUSED, f"Sec-Fetch-Site: {value}, a change", f"Sec-Fetch-Site: {value}", method="DELETE", path="/v1/nodes/<victim>")
origin("403 forbidden or 400 invalid-request", "two Sec-Fetch-Sites", "Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site")
origin(REFUSED, "another's Origin, a change", "Origin: http://evil.example", method="DELETE", path="/v1/nodes/<victim>")
origin(REFUSED, "another's Origin, to a route without a token", "Origin: http://evil.example", path="/healthz", token=None)

# What a browser sends for a page of others.
browser = ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]
form = ["Content-Type: application/x-www-form-urlencoded"]
origin(EITHER, "an image", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: image", token=None)
origin(EITHER, "a form", *browser, *form, method="POST", path="/v1/runs", token=None, body="name=x")
origin(EITHER, "a form with text/plain", *browser, "Content-Type: text/plain", method="POST", path="/v1/nodes", token=None, body='{"node_id":"evil","static":true,"capabilities":[]}')
origin(EITHER, "a fetch without CORS", *browser, "Content-Type: text/plain;charset=UTF-8", method="POST", path="/v1/nodes/<victim>/drain", token=None, body='{"mode":"graceful"}')
origin(EITHER, "a WebSocket", "Origin: http://evil.example", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==", "Sec-WebSocket-Version: 13", path="/v1/events", token=None)
origin(EITHER, "an EventSource", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Accept: text/event-stream", path="/v1/events", token=None)
origin(EITHER, "an older browser's form: Referer, no Origin", "Referer: http://evil.example/", *form, method="POST", path="/v1/runs", token=None, body="name=x")
# No answer may have Access-Control-Allow-Origin: that is checked with every answer.
preflight = ["Access-Control-Request-Method: DELETE", "Access-Control-Request-Headers: authorization,content-type"]
origin("403 forbidden or 401 unauthorized", "a preflight", "Origin: http://evil.example", *preflight, method="OPTIONS", path="/v1/nodes/<victim>", token=None)
origin("405 method-not-allowed", "a preflight of our own Origin", "Origin: http://<host>", *preflight, method="OPTIONS", path="/v1/nodes/<victim>")
origin("405 method-not-allowed", "OPTIONS", method="OPTIONS", path="/v1/runs")
origin("405 method-not-allowed", "a preflight for a private network", *preflight, "Access-Control-Request-Private-Network: true", method="OPTIONS", path="/v1/nodes")
