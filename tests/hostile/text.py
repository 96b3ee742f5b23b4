"""Names, labels, reasons, questions: no control characters but tab and newline, and ids of one form.

What is merely odd (marks that turn the direction of writing, letters without a width) is text like any other: kept as
it is, and written as an escape wherever people look at it. So it is accepted here, and nothing comes of it.
"""

CONTROLS = [("NUL", "\0"), ("an escape", "\x1b[2J"), ("an escape for the clipboard", "\x1b]52;c;eA==\x07"), ("CR", "a\rb"), ("backspace", "a\bb"), ("DEL", "\x7f"), ("a C1 control", "\x9b31m"), ("NEL", "\x85"), ("a bell", "\a")]
ODD = [("a bidirectional override", "a\u202egnp.exe"), ("isolates", "a\u2066b\u2069"), ("a zero-width space", "a\u200bb"), ("a byte order mark", "\ufeffa"), ("a line separator", "a\u2028b"), ("tags", "a\U000e0041"), ("an image tag", "<img src=x onerror=alert(1)>"), ("a template", "{{7*7}}${7*7}"), ("a formula", "=cmd|'/c calc'!A1"), ("SQL", "'; DROP TABLE runs; --"), ("a log line", 'x\n[2026-01-01T00:00:00Z ERROR mediator] forged=1'), ("a composed and a decomposed letter", "é e\u0301"), ("a thousand marks on one letter", "e" + "\u0301" * 400)]

NODE = {"node_id": "<victim>", "static": True, "capabilities": [{"capability": "<tag>-victim"}]}


def contract(**more):
    text = {"requires": [{"as": "dut", "capability": "<capability>"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]}
    text.update(more)
    return text


def step(**more):
    return contract(steps=[dict({"id": "a", "uses": "dut", "run": ["true"]}, **more)])


def ask(**more):
    return contract(steps=[{"id": "a", "ask": dict({"prompt": "x"}, **more)}])


SUBMITTED = {
    "the name of a run": lambda text: contract(name=text),
    "work": lambda text: contract(work=text),
    "the value of an attribute": lambda text: contract(requires=[{"as": "dut", "capability": "<capability>", "attrs": {"a": text}}]),
    "a word of a command": lambda text: step(run=["echo", text]),
    "a value of the environment": lambda text: step(env={"A": text}),
    "a question": lambda text: ask(prompt=text),
    "an option": lambda text: ask(options=[text]),
    "who may answer": lambda text: ask(answerers=[text]),
}
ELSEWHERE = {
    "a label": ("POST", "/v1/nodes", lambda text: dict(NODE, label=text)),
    "a host": ("POST", "/v1/nodes", lambda text: dict(NODE, host=text)),
    "a version": ("POST", "/v1/nodes", lambda text: dict(NODE, agent_version=text)),
    "a capability": ("POST", "/v1/nodes", lambda text: dict(NODE, capabilities=[{"capability": text}])),
    "the name of an attribute": ("POST", "/v1/nodes", lambda text: dict(NODE, capabilities=[{"capability": "x", "attrs": {text: "1"}}])),
    "an instance": ("POST", "/v1/nodes", lambda text: {"node_id": "<agent>", "instance": text, "capabilities": []}),
    "a reason to drain": ("POST", "/v1/nodes/<victim>/drain", lambda text: {"mode": "graceful", "reason": text}),
    "an owner's reason to drain": ("POST", "/v1/nodes", lambda text: dict(NODE, policy={"drain": "graceful", "reason": text})),
    "a reason to cancel": ("POST", "/v1/runs/<ask>/cancel", lambda text: {"reason": text}),
    "an answer": ("POST", "/v1/runs/<ask>/steps/1/answer", lambda text: {"answer": text}),
    "an error": ("POST", "/v1/runs/<run>/steps/1/result", lambda text: {"node_id": "<agent>", "nonce": "<nonce>", "attempt": 1, "error": text}),
    "a nonce": ("POST", "/v1/runs/<run>/steps/1/result", lambda text: {"node_id": "<agent>", "nonce": text, "attempt": 1, "exit_code": 0}),
}
for what, text in CONTROLS:
    for place, body in SUBMITTED.items():
        case("400 invalid-contract", f"{what} in {place}", Request("POST", "/v1/runs", body=body(text)))
    for place, (method, path, body) in ELSEWHERE.items():
        case("400 invalid-request", f"{what} in {place}", Request(method, path, body=body(text)))
for what, text in ODD:
    for place in ("the name of a run", "work", "a question", "a word of a command"):
        case("200", f"{what} in {place}: a dry run", Request("POST", "/v1/runs?dry_run=true", body=SUBMITTED[place](text)))
    case("422 not-an-option", f"{what} as an answer: not among the options", Request("POST", "/v1/runs/<ask>/steps/1/answer", body={"answer": text}))
    case("409 stale-lease", f"{what} as a nonce: not the lease's", Request("POST", "/v1/runs/<run>/steps/1/result", body={"node_id": "<agent>", "nonce": text, "attempt": 1, "exit_code": 0}))

# Ids have one form everywhere.
for what, text in [("nothing", ""), ("a dot", "."), ("two dots", ".."), ("a path up", "../x"), ("a slash", "a/b"), ("a backslash", "a\\b"), ("a dash first", "-rf"), ("a dot first", ".ssh"), ("an underscore first", "_x"), ("a space", "a b"), ("a newline", "a\nb"), ("65 letters", "x" * 65), ("a letter beyond ASCII", "é"), ("full-width letters", "ａ"), ("a zero-width space", "a\u200bb"), ("a bidirectional override", "a\u202eb"), ("a colon", "C:x"), ("a percent sign", "a%2fb"), ("a star", "*"), ("a quote", "a'b"), ("a tag", "<b>")]:
    case("400 invalid-request", f"a node's id: {what}", Request("POST", "/v1/nodes", body=dict(NODE, node_id=text)))
    case("400 invalid-contract", f"a run's id: {what}", Request("POST", "/v1/runs", body=contract(run_id=text)))
    case("400 invalid-contract", f"a step's id: {what}", Request("POST", "/v1/runs", body=step(id=text)))
    case("400 invalid-contract", f"a role: {what}", Request("POST", "/v1/runs", body=contract(requires=[{"as": text, "capability": "<capability>"}])))
case("400 invalid-contract", "a role with a dot", Request("POST", "/v1/runs", body=contract(requires=[{"as": "a.b", "capability": "x"}])))
for what, name in [("../x", "../x"), ("/x", "/x"), ("C:\\x", "C:\\x"), ("a dot", "."), ("two dots in the middle", "a/../b"), ("a slash at the end", "a/"), ("two slashes", "a//b"), ("nothing", ""), ("a newline", "a\nb"), ("4 KiB", "x" * 4096)]:
    want = "400 invalid-contract"
    case(want, f"an artifact of a step: {what}", Request("POST", "/v1/runs", body=step(artifacts=[name])))
for what, name in [("an equals sign", "A=B"), ("nothing", ""), ("NUL", "A\0B")]:
    case("400 invalid-contract", f"a variable's name: {what}", Request("POST", "/v1/runs", body=step(env={name: "x"})))
case("400 invalid-contract", "an empty word first in a command", Request("POST", "/v1/runs", body=step(run=[""])))
case("400 invalid-request", "a label of 2 KiB", Request("POST", "/v1/nodes", body=dict(NODE, label="x" * 2048)))
case("400 invalid-request", "257 capabilities", Request("POST", "/v1/nodes", body=dict(NODE, capabilities=[{"capability": f"c{n}"} for n in range(257)])))
case("400 invalid-request", "the attribute `node` of another node", Request("POST", "/v1/nodes", body=dict(NODE, capabilities=[{"capability": "x", "attrs": {"node": "<node>"}}])))

# Kept as it is, and given back as it was. Last, since it changes something.
for what, text in ODD:
    body = {"node_id": "<tag>-odd", "static": True, "label": text, "capabilities": [{"capability": "<tag>-odd", "attrs": {"a": text}}]}
    case("200", f"{what} in a label", Request("POST", "/v1/nodes", body=body), changes=True)
