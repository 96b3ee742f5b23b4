"""Event streams: from an id that is one, of a run that may be one."""

BAD = "400 invalid-request"
for value in ["x", "-1", "1.5", "0x1", "1e3", "+1", "1 2", "1,2", "", "9223372036854775808", "18446744073709551616", "9" * 400, "é", "NaN", "'", "%31", "0;1"]:
    case(BAD, f"Last-Event-ID: {value[:30]}", Request("GET", "/v1/events", f"Last-Event-ID: {value}"))
case(BAD, "two Last-Event-IDs", Request("GET", "/v1/events", "Last-Event-ID: 1", "Last-Event-ID: 2"))
case("400, closed", "NUL in Last-Event-ID", Request("GET", "/v1/events", "Last-Event-ID: 1\0"))
case("200", "from the beginning", Request("GET", "/v1/events", "Last-Event-ID: 0"))
case("200", "from the future: begins anew", Request("GET", "/v1/events", "Last-Event-ID: 9223372036854775807"))
case("405 method-not-allowed", "POST of an event", Request("POST", "/v1/events"))
case("200, quiet", "a request behind a stream waits for its end", Request("GET", "/v1/events"), Request("DELETE", "/v1/nodes/<victim>"))
