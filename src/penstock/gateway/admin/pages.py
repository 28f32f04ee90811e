"""The page's files: few, read at start, served as they are. They hold nothing secret.

`catalogue.js` is made of the catalogue, so that the page has no sentences of its own for codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

import msgspec

from penstock.core.values.catalogue import Cause, EndpointState, Reason
from penstock.gateway.admin.routes import AdminRoutes
from penstock.http.server.server import Exchange, Header

_SCRIPTS = (
    *("page", "acts", "columns", "curves", "fair", "groups", "keys", "legend", "link", "seen", "shades", "tables"),
    *("sessions", "try", "usage", "verbs", "wall", "words"),
)
_SCRIPT = b"text/javascript; charset=utf-8"
_FILES = {
    "/admin/": ("index.html", b"text/html; charset=utf-8"),
    "/admin/page.css": ("page.css", b"text/css; charset=utf-8"),
    **{f"/admin/{name}.js": (f"{name}.js", _SCRIPT) for name in _SCRIPTS},
}
# Nothing from elsewhere, nothing inline, no frames: names that callers chose can't become anything but text.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: list[Header] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


class Pages:
    """The page, as handlers of routes."""

    def __init__(self) -> None:
        folder = resources.files("penstock.gateway.admin") / "page"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
        self._files["/admin/catalogue.js"] = (_catalogue(), _SCRIPT)

    def add_to(self, routes: AdminRoutes) -> None:
        for path in self._files:
            routes.add("GET", path, self._serve, public=True)
        routes.add("GET", "/admin", self._redirect, public=True)

    def _serve(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        data, kind = self._files[exchange.target_path]
        exchange.respond(200, [(b"content-type", kind), *_HEADERS], data)

    def _redirect(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        exchange.respond(308, [(b"location", b"admin/"), *_HEADERS], b"")


def _catalogue() -> bytes:
    """The sentences of causes and reasons and the tones of states, as a module."""
    causes = msgspec.json.encode({str(cause): cause.sentence for cause in Cause})
    reasons = msgspec.json.encode({str(reason): reason.sentence for reason in Reason})
    states = msgspec.json.encode({str(state): state.tone for state in EndpointState})
    return b"export const CAUSES = %b;\nexport const REASONS = %b;\nexport const STATES = %b;\n" % (
        causes,
        reasons,
        states,
    )
