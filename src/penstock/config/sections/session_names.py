"""Names of sessions (`routing.session.names`) that no client can mean."""

from __future__ import annotations

from penstock.config import values
from penstock.config.problems import Found, Refused, problem, show
from penstock.config.sections.routing import SessionName

#: Headers and fields that name no session, whoever sends them.
NO_NAMES = frozenset(
    {
        *("authorization", "x-api-key", "cookie", "host", "connection", "accept", "accept-encoding", "content-type"),
        *("content-length", "content-encoding", "transfer-encoding", "user-agent", "x-request-id", "traceparent"),
        *(
            "model",
            "messages",
            "prompt",
            "input",
            "system",
            "instructions",
            "tools",
            "stream",
            "max_tokens",
            "metadata",
        ),
    }
)


def names_checks(names: tuple[SessionName, ...]) -> Found:
    """Yields names that no client can mean."""
    seen: set[tuple[bool, str]] = set()
    for index, name in enumerate(names):
        at = ("routing", "session", "names", index)
        if (name.header is None) == (name.body is None):
            yield problem(at, "names a session by a header or by a field of the body: exactly one of both")
            continue
        given = name.header or name.body or ""
        if name.parent is not None and name.header is not None:
            try:
                values.header_name(name.parent)
            except Refused as refused:
                yield problem((*at, "parent"), str(refused))
        for each in (given, name.parent or ""):
            if each.lower() in NO_NAMES:
                yield problem(at, f"{show(each)} tells no session")
        if name.parent is not None and name.parent.lower() == given.lower():
            yield problem((*at, "parent"), "is the session's own name")
        if (name.header is None, given) in seen:
            yield problem(at, f"{show(given)} is there twice")
        seen.add((name.header is None, given))
