"""By which name the daemon is called: loopback names and those of `http.hosts`, whatever Origin says.

A page whose name was made to lead to this machine sends its own name.
"""

OTHER = "421 wrong-host"
# Refused as another's name, or as no name.
NO_NAME = "421 wrong-host or 400 invalid-request or 400, closed"


def host(want, name, *lines):
    case(want, f"Host: {name}", Request("GET", "/v1/nodes?limit=1", *lines, host=name))


for name in ["<host>", "127.0.0.1", "127.0.0.1:1", "localhost", "localhost:<port>", "LOCALHOST:<port>", "LocalHost", "[::1]", "[::1]:<port>", "localhost:"]:
    host("200", name)
case(OTHER, "no Host", Request("GET", "/v1/nodes", host=None))
case(OTHER, "no Host, HTTP/1.0", Request("GET", "/v1/nodes", host=None, version="1.0"))
case(OTHER, "no Host, without a token", Request("GET", "/v1/nodes", host=None, token=None))
case(OTHER, "no Host, to a route without a token", Request("GET", "/healthz", host=None, token=None))
case("400 invalid-request", "two equal Hosts", Request("GET", "/v1/nodes", "Host: <host>"))
case("400 invalid-request", "two Hosts, the second another's", Request("GET", "/v1/nodes", "Host: evil.example"))
case("400 invalid-request", "two Hosts, the first another's", Request("GET", "/v1/nodes", "Host: <host>", host="evil.example"))
for name in ["evil.example", "evil.example:<port>", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "localhostx", "xlocalhost", "local-host"]:
    host(OTHER, name)
host(OTHER, "evil.example:<port>", "Origin: http://evil.example:<port>")
host(OTHER, "evil.example:<port>", "Origin: http://127.0.0.1:<port>")
host(OTHER, "evil.example", "X-Forwarded-Host: 127.0.0.1", "X-Forwarded-For: 127.0.0.1", "Forwarded: host=localhost")
host("200", "<host>", "X-Forwarded-Host: evil.example")
# Numbers that some programs take for this machine.
for name in ["0.0.0.0", "0.0.0.0:<port>", "0", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.01", "127.000.000.001", "[::]", "[::]:<port>", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "128.0.0.1", "169.254.169.254", "10.0.0.1"]:
    host(OTHER, name)
for name in ["", " ", ":", ":<port>", "::1", "[::1", "::1]", "[127.0.0.1]", "[localhost]", "localhost:80:80", "localhost:abc", "localhost:-1", "localhost:+80", "localhost: 80", "localhost..", ".localhost", "localhost,evil.example", "localhost, localhost", "evil.example localhost", "localhost evil.example", "localhost\tevil.example", "http://localhost", "localhost/", "localhost/evil", "localhost?", "localhost#", "localhost\\evil", "%6cocalhost", "localhost%00", "localhost%2eevil", "ⓛocalhost", "lоcalhost", "*", "null", "localhost;evil", '"localhost"']:
    host(NO_NAME, name)
for name in ["evil.example@localhost", "localhost@evil.example", "user:password@127.0.0.1:<port>", "@localhost", "evil.example:80@localhost", "localhost:<port>@evil.example"]:
    host(NO_NAME, name)
case("400, closed", "NUL in Host", Request("GET", "/v1/nodes", host="localhost\0"))
case(NO_NAME, "a Host of 8 KiB", Request("GET", "/v1/nodes", host="a" * 8192))
host("200 or 421 wrong-host", "localhost.")
host("200 or 421 wrong-host", "127.0.0.2")

# The whole address in the first line: others would believe it, and not Host.
case("200", "an absolute target, our own", Request("GET", "http://<host>/v1/nodes?limit=1"))
case(OTHER, "an absolute target, another's", Request("GET", "http://evil.example/v1/nodes"))
case(OTHER, "an absolute target, another's with our port", Request("GET", "http://evil.example:<port>/v1/nodes"))
case(OTHER, "an absolute target, another's Host", Request("GET", "http://<host>/v1/nodes", host="evil.example"))
case(OTHER, "an absolute target, no Host", Request("GET", "http://<host>/v1/nodes", host=None))
case(NO_NAME, "an absolute target with a user", Request("GET", "http://evil.example@<host>/v1/nodes"))
case(NO_NAME, "an absolute target with our name as a user", Request("GET", "http://<host>@evil.example/v1/nodes"))
case(OTHER, "an absolute target with an odd number", Request("GET", "http://2130706433/v1/nodes"))
case("400, closed or 421 wrong-host", "an absolute target without a name", Request("GET", "http:///v1/nodes"))
case("421 wrong-host or 400 or 400, closed or 404 not-found", "a file", Request("GET", "file:///etc/passwd"))
