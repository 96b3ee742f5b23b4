"""What kind of body it is: JSON, or none, and never compressed."""

import gzip
import zlib

TYPE = "415 unsupported-media-type, closed"
# Two lines of which one is right: which of them counts is not for us to guess.
TWO = "415 unsupported-media-type, closed or 400 invalid-request, closed"

GOOD = "400 invalid-contract"


def post(want, what, *lines, path="/v1/runs", body=b"{}", method="POST"):
    case(want, what, Request(method, path, *lines, body=body))


for value in ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;charset=UTF-8", " application/json "]:
    post(GOOD, f"Content-Type: {value}", f"Content-Type: {value}")
post(GOOD, "no Content-Type")
for value in ["text/plain", "text/plain; charset=utf-8", "text/json", "text/html", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "application/octet-stream", "application/jsonp", "application/json-patch+json", "application/problem+json", "application/vnd.api+json", "application/", "/json", "json", "application/json, text/plain", "text/plain, application/json", "text/plain; application/json", "text/plain; x=application/json", "application /json", "application/json\\", '"application/json"', "*/*", "application/*", ""]:
    post(TYPE, f"Content-Type: {value}", f"Content-Type: {value}")
post(TYPE, "a form to an answer", "Content-Type: application/x-www-form-urlencoded", path="/v1/runs/<ask>/steps/1/answer", body="answer=yes")
post(TYPE, "text/plain to an advert", "Content-Type: text/plain", path="/v1/nodes", body='{"node_id":"evil","static":true,"capabilities":[]}')
post(TYPE, "text/plain to a cancel", "Content-Type: text/plain", path="/v1/runs/<ask>/cancel")
post(TYPE, "text/plain to a drain", "Content-Type: text/plain", path="/v1/nodes/<victim>/drain", body='{"mode":"graceful"}')
post(TYPE, "text/plain to a removal", "Content-Type: text/plain", path="/v1/nodes/<victim>", method="DELETE")
post(TWO, "JSON and text/plain", "Content-Type: application/json", "Content-Type: text/plain")
post(TWO, "text/plain and JSON", "Content-Type: text/plain", "Content-Type: application/json")
post(GOOD, "Content-Encoding: identity", "Content-Encoding: identity")
for value in ["gzip", "deflate", "br", "zstd", "x-gzip", "compress", "gzip, gzip", "identity, gzip", "gzip, identity", "", "aes128gcm"]:
    post(TYPE, f"Content-Encoding: {value}", f"Content-Encoding: {value}")
post(TWO, "Content-Encoding: identity, then gzip", "Content-Encoding: identity", "Content-Encoding: gzip", body=gzip.compress(b"{}"))
post(TYPE, "a real one", "Content-Encoding: gzip", body=gzip.compress(b"{}"))
post(TYPE, "10 MiB of zeros, compressed", "Content-Encoding: gzip", body=gzip.compress(b"0" * (10 << 20)))
post(TYPE, "10 MiB of zeros, deflated", "Content-Encoding: deflate", body=zlib.compress(b"0" * (10 << 20)))
post("400 invalid-contract", "compressed, and not said so", body=gzip.compress(b"{}"))
post(TYPE, "a compressed artifact", "Content-Encoding: gzip", path="/v1/runs/<run>/steps/1/artifacts/a?nonce=<nonce>&attempt=1", body=gzip.compress(b"x"), method="PUT")
post(TYPE, "a compressed log", "Content-Encoding: br", path="/v1/runs/<run>/steps/1/log?nonce=<nonce>&attempt=1&offset=0", body=b"x", method="PUT")
case("200", "Accept-Encoding: gzip: nothing is compressed either", Request("GET", "/v1/nodes?limit=1", "Accept-Encoding: gzip, br"))
case("200", "Accept: text/html", Request("GET", "/v1/nodes?limit=1", "Accept: text/html"))
