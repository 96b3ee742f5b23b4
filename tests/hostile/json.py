"""JSON that readers understand differently, or that is built to hurt: refused, with the place.

What would be accepted goes to a dry run, which changes nothing; what must be refused goes to where it would count.
"""

import json

BAD = "400 invalid-contract"


def contract(**more):
    text = {"requires": [{"as": "dut", "capability": "<capability>"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]}
    text.update(more)
    return json.dumps(text)


def bad(what, body, want=BAD):
    case(want, what, Request("POST", "/v1/runs", body=body))


def good(what, body):
    case("200", what, Request("POST", "/v1/runs?dry_run=true", body=body))


def field(text):
    """A contract with one field more, as it is written."""
    return contract()[:-1] + "," + text + "}"


def nested(count, opening="[", closing="]"):
    return opening * count + closing * count


good("as it should be", contract(name="x"))
good("white space all around", " \t\r\n" + contract() + "\n\n")

# Not JSON.
for what, body in [
    ("an empty array", "[]"), ("a string", '"x"'), ("a number", "1"), ("null", "null"), ("true", "true"),
    ("one brace", "{"), ("one quote", '"'), ("a comma at the end", '{"a":1,}'), ("no comma", '{"a":1 "b":2}'),
    ("no colon", '{"a" 1}'), ("single quotes", "{'a':1}"), ("a name without quotes", "{a:1}"), ("a comment", "{/* */}"),
    ("a comment to the line's end", "// x\n{}"), ("NaN", field('"limit_seconds":NaN')), ("Infinity", field('"limit_seconds":Infinity')),
    ("-Infinity", field('"limit_seconds":-Infinity')), ("undefined", field('"name":undefined')), ("a leading zero", field('"limit_seconds":01')),
    ("a leading plus", field('"limit_seconds":+1')), ("a dot at the end", field('"limit_seconds":1.')), ("a dot at the start", field('"limit_seconds":.5')),
    ("a hexadecimal number", field('"limit_seconds":0x10')), ("an underscore in a number", field('"limit_seconds":1_0')), ("a lone minus", field('"limit_seconds":-')),
    ("an exponent without digits", field('"limit_seconds":1e')), ("True", field('"attended":True')), ("YAML", "name: x\nsteps: []\n"), ("a form", "name=x&steps=1"),
    ("two documents", contract() + contract()), ("a document and a brace", contract() + "}"), ("a document and a word", contract() + " x"),
    ("a document and NUL", contract() + "\0"), ("lines of JSON", contract() + "\n" + contract()), ("only white space", " \n"),
    ("a byte order mark", b"\xef\xbb\xbf" + contract().encode()), ("UTF-16", contract().encode("utf-16")), ("UTF-16 without a mark", contract().encode("utf-16-le")),
    ("UTF-32", contract().encode("utf-32-le")), ("NUL before it", "\0" + contract()), ("a form feed before it", "\f" + contract()),
    ("a space that is not of JSON", "\u00a0" + contract()), ("a thousand NULs", b"\0" * 1000), ("random bytes", bytes(range(256))),
]:
    bad(what, body)

# Deep and wide.
bad("33 arrays", field('"name":' + nested(32)))
bad("33 objects", field('"name":' + nested(32, '{"a":', "}").replace(":}", ":1}")))
bad("128 arrays", nested(128))
bad("129 arrays", nested(129))
bad("100,000 arrays", nested(100_000))
bad("250,000 arrays that are never closed", "[" * 250_000)
bad("50,000 objects that are never closed", '{"a":' * 50_000)
bad("a million brackets: too large", "[" * 1_000_000, "413 too-large, closed")
bad("an array of 100,000 numbers", field('"requires":[' + "0," * 100_000 + "0]").replace('"requires"', '"x"', 1))
bad("20,000 unknown fields", "{" + ",".join(f'"k{n}":1' for n in range(20_000)) + "}")
bad("501 steps", contract(steps=[{"id": f"s{n}", "hold": {}} for n in range(501)]))
bad("33 roles", contract(requires=[{"as": f"r{n}", "capability": "x"} for n in range(33)]))
bad("a string of 250,000 letters where 1,024 may be", contract(name="x" * 250_000))
bad("250,000 backslashes", b'{"name":"' + b"\\" * 250_000 + b'"}')
good("32 levels", contract(steps=[{"id": "a", "uses": "dut", "run": ["true"], "env": {"A": json.dumps(nested(40))}}]))
good("JSON in a string is a string", contract(name='{"a":1,"a":2}', work="[" * 1000))
good("500 steps", contract(steps=[{"id": f"s{n}", "uses": "dut", "run": ["true"]} for n in range(500)]))

# The same name twice: readers keep the first, or the last.
bad("a name twice", field('"steps":[]'))
bad("a name twice, the same value", field('"name":"x","name":"x"'))
bad("a name twice, written differently", field('"name":"x","na\\u006de":"y"'))
bad("a name twice in a role", contract().replace('"as"', '"as": "other", "as"'))
bad("a name twice in attributes", contract(requires=[{"as": "dut", "capability": "<capability>", "attrs": {}}]).replace('"attrs": {}', '"attrs": {"a":1,"a":2}'))
bad("a name twice in a step", contract().replace('"id"', '"id": "b", "id"'))
bad("a name twice where nothing is read", field('"work":{"a":{"b":1,"b":2}}'))
bad("null and a value", field('"name":null,"name":"x"'))

# Numbers.
for what, text in [
    ("2^53", "9007199254740992"), ("-2^53", "-9007199254740992"), ("2^53 with a fraction of zero", "9007199254740992.0"), ("2^53 with an exponent", "9007199254740992e0"),
    ("2^63", "9223372036854775808"), ("2^64", "18446744073709551616"), ("2^64 + 1", "18446744073709551617"), ("-2^63 - 1", "-9223372036854775809"), ("1e400", "1e400"), ("-1e400", "-1e400"),
    ("1e308", "1e308"), ("1e16", "1e16"), ("a thousand digits", "9" * 1000), ("an exponent of a thousand digits", "1e" + "9" * 1000),
]:
    bad(f"priority: {what}", field(f'"priority":{text}'))
    bad(f"an attribute: {what}", contract().replace('"<capability>"', '"<capability>", "attrs": {"a": %s}' % text))
bad("priority: a fraction", field('"priority":0.5'))
bad("priority: a string", field('"priority":"1"'))
bad("priority: 11", field('"priority":11'))
bad("an attribute: a fraction", contract().replace('"<capability>"', '"<capability>", "attrs": {"a": 0.5}'))
bad("seconds: 0", field('"limit_seconds":0'))
bad("seconds: -0", field('"limit_seconds":-0.0'))
bad("seconds: negative", field('"limit_seconds":-1'))
bad("count: 0", contract().replace('"<capability>"', '"<capability>", "count": 0'))
bad("count: 33", contract().replace('"<capability>"', '"<capability>", "count": 33'))
for what, text in [("-0", "-0"), ("1.0", "1.0"), ("1e0", "1e0"), ("10E-1", "10E-1")]:
    good(f"priority: {what} is an integer", field(f'"priority":{text}'))
# Numbers are doubles, as in RFC 8785: this one is 0.
good("priority: a hundred thousand digits behind the dot", field('"priority":0.' + "0" * 100_000 + "1"))
good("2^53 - 1", field('"limit_seconds":9007199254740991'))
good("5e-324 s", field('"limit_seconds":5e-324'))

# Text that is none.
for what, text in [
    ("a lone high surrogate", b"\\ud800"), ("a lone low surrogate", b"\\udc00"), ("surrogates in the wrong order", b"\\udc00\\ud800"), ("a high surrogate and a letter", b"\\ud800x"),
    ("a surrogate in UTF-8", b"\xed\xa0\x80"), ("an overlong slash", b"\xc0\xaf"), ("an overlong NUL", b"\xc0\x80"), ("an overlong letter of three bytes", b"\xe0\x81\x81"),
    ("a byte that starts nothing", b"\xff"), ("a byte that continues nothing", b"\x80"), ("a letter cut off", b"\xe2\x82"), ("beyond Unicode", b"\xf4\x90\x80\x80"), ("five bytes", b"\xf8\x88\x80\x80\x80"),
    ("Latin-1", b"caf\xe9"), ("an unknown escape", b"\\x41"), ("an escape of three digits", b"\\u004"), ("an escape of no digits", b"\\uzzzz"),
    ("NUL", b"\0"), ("NUL, written", b"\\u0000"), ("a line break as it is", b"\n"), ("a tab as it is", b"\t"), ("CR, written", b"\\r"), ("backspace, written", b"\\b"), ("form feed, written", b"\\f"),
]:
    bad(f"a string with {what}", b'{"name":"' + text + b'",' + contract()[1:].encode())
    bad(f"a name with {what}", b'{"' + text + b'":1,' + contract()[1:].encode())
good("a pair of surrogates", b'{"name":"\\ud83d\\ude00",' + contract()[1:].encode())
good("the last letter of Unicode", b'{"name":"\xf4\x8f\xbf\xbf",' + contract()[1:].encode())

# The other routes read by the same rules.
for what, method, path, body in [
    ("an advert", "POST", "/v1/nodes", '{"node_id":"<victim>","node_id":"<tag>-evil","static":true,"capabilities":[]}'),
    ("a claim", "POST", "/v1/nodes/<agent>/claim", '{"instance":"x","instance":"<instance>"}'),
    ("a drain", "POST", "/v1/nodes/<victim>/drain", '{"mode":"graceful","mode":"graceful"}'),
    ("a cancel", "POST", "/v1/runs/<ask>/cancel", '{"reason":"a","reason":"b"}'),
    ("an answer", "POST", "/v1/runs/<ask>/steps/1/answer", '{"answer":"no","answer":"yes"}'),
    ("a result", "POST", "/v1/runs/<run>/steps/1/result", '{"node_id":"<agent>","nonce":"<nonce>","attempt":1,"exit_code":1,"exit_code":0}'),
    ("a renewal", "POST", "/v1/runs/<run>/renew", '{"a":1}'),
    ("a removal", "DELETE", "/v1/nodes/<victim>", '{"a":1}'),
]:
    case("400 invalid-request", f"{what}: the same name twice, or an unknown one", Request(method, path, body=body))
    case("400 invalid-request", f"{what}: no object", Request(method, path, body="[1]"))
    case("400 invalid-request", f"{what}: not JSON", Request(method, path, body="{"))
    case("400 invalid-request", f"{what}: 33 levels", Request(method, path, body='{"x":' + nested(32) + "}"))
