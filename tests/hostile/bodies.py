"""Does one body stop every stream? Bodies of all shapes, one after another, and how long each held the loop up.

    python -m tests.hostile.bodies [--mib 64] [SHAPE ...]

For each shape: the status, `held` (the longest that the gateway's loop was held up, in CPU time), `late` (the same by
the clock, which on a busy machine is mostly the machine's), and the peak of its memory.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.hostile.probed import Probed, probed

ADMIN_BYTES_MAX = 64 * 1024

CHAT = "/v1/chat/completions"
HELD_MS_MAX = 20.0
TOKEN = "the-operators-own-token"
_BEGIN = b'{"model":"m","messages":[{"role":"user","content":"hi"}],'


def _filled(field: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return b'{"model":"alias",' + field + piece * ((size - 100) // len(piece)) + end + b"}"


def _numbered(size: int) -> bytes:
    return b'{"model":"alias",' + b",".join([b'"%x":1' % at for at in range(size // 12)]) + b"}"


#: By name: a body of about so many bytes.
SHAPES: dict[str, Callable[[int], bytes]] = {
    "arrays in parameters": lambda size: _filled(b'"parameters":[', b"[],", b"[]]", size),
    "objects in parameters": lambda size: _filled(b'"parameters":[', b"{},", b"{}]", size),
    "keys in stream_options": lambda size: _filled(b'"stream":true,"stream_options":{', b'"a":1,', b'"b":1}', size),
    "user a list": lambda size: _filled(b'"user":[', b"1,", b"1]", size),
    "numbers": lambda size: _filled(b'"priority":[', b"1e5,", b"1]", size),
    "one number": lambda size: _filled(b'"priority":1', b"0", b"", size),
    "model a list": lambda size: _filled(b'"model":[', b'"",', b'""]', size),
    "model a string": lambda size: _filled(b'"model":"', b"m", b'"', size),
    "a field twice": lambda size: _filled(b'"x":1,"x":[', b"[1],", b"[]]", size),
    "model very often": lambda size: _filled(b"", b'"model":"m",', b'"z":1', size),
    "one field very often": lambda size: _filled(b"", b'"a":1,', b'"z":1', size),
    "many fields": _numbered,
    "spaces": lambda size: _filled(b"", b" ", b'"z":1', size),
    "spaces behind": lambda size: _BEGIN + b'"a":1}' + b" " * (size - 100),
    "deep": lambda size: _filled(b'"x":', b"[", b"", size),
    "deep and wide": lambda size: _filled(b'"x":[', b"[" * 100 + b"]" * 100 + b",", b"1]", size),
    "five deep": lambda size: _filled(b'"x":[', b"[[[[[]]]]],", b"1]", size),
    "strings": lambda size: _filled(b'"stop":[', b'"",', b'""]', size),
    "a text": lambda size: _filled(b'"prompt":"', b"some words of a text. ", b'"', size),
    "escapes": lambda size: _filled(b'"prompt":"', b'\\"', b'"', size),
    "beyond ASCII": lambda size: _filled(b'"prompt":"', "é".encode(), b'"', size),
    "token ids": lambda size: _filled(b'"prompt":[', b"1,", b"1]", size),
    "several inputs": lambda size: _filled(b'"input":[', b'"some words",', b'"z"]', size),
    "messages": lambda size: _filled(b'"messages":[', b'{"role":"user","content":"hi"},', b"{}]", size),
    "parts": lambda size: _filled(b'"messages":[{"content":[', b'{"type":"image_url"},', b"{}]}]", size),
    "a picture": lambda size: _filled(
        b'"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,',
        b"QUJD",
        b'"}}]}]',
        size,
    ),
    "tools": lambda size: _filled(b'"tools":[', b'{"type":"function"},', b"{}]", size),
    "not UTF-8": lambda size: _filled(b'"prompt":"', b"a", b'\xff"', size),
    "cut off": lambda size: _filled(b'"parameters":[', b"[],", b"", size)[:-1],
    "no JSON": lambda size: b"x" * size,
    "nothing but brackets": lambda size: b"[" * size,
    "half a string": lambda size: b'{"model":"' + b"\\" * size,
}

BOUNDARY = b"-" * 60 + b"b"
FORMS: dict[str, Callable[[int], bytes]] = {
    "a form's file": lambda size: _form(b"x" * size),
    "almost boundaries": lambda size: _form((b"\r\n--" + BOUNDARY[:-1] + b"c") * (size // 70)),
    "a form without end": lambda size: b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data\r\n\r\n" + b"-" * size,
}


PACKED: dict[str, Callable[[int], bytes]] = {"gzip of zeros": bytes, "gzip of JSON": SHAPES["messages"]}


def _endpoint(field: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return b'{"url":"http://127.0.0.1:1",' + field + piece * ((size - 100) // len(piece)) + end + b"}"


#: To POST /admin/endpoints, with the token: none is an endpoint.
ADMIN: dict[str, Callable[[int], bytes]] = {
    "admin: unknown settings": lambda size: b"{" + b",".join(b'"k%x":1' % at for at in range(size // 12)) + b"}",
    "admin: one setting more than is read": lambda _: json.dumps({f"slot{at}": 1 for at in range(65)}).encode(),
    "admin: many settings that are nearly known": lambda _: json.dumps({f"slot{at}": 1 for at in range(64)}).encode(),
    "admin: models that are none": lambda size: _endpoint(b'"models":[', b"{},", b"{}]", size),
    "admin: one model very often": lambda size: _endpoint(b'"models":[', b'"m",', b'"m"]', size),
    "admin: lists for labels": lambda size: _endpoint(b'"labels":[', b"[],", b"[]]", size),
    "admin: a number of slots": lambda size: _endpoint(b'"slots":"', b"9", b'"', size),
    "admin: a long address": lambda size: b'{"url":"http://' + b"a." * (size // 2 - 20) + b'"}',
}
NAMES = (*SHAPES, *FORMS, *PACKED, *ADMIN)


def _form(file: bytes) -> bytes:
    part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    named = b'--%b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n'
    return named % (BOUNDARY, file) + part % (BOUNDARY, b"model", b"alias") + b"--" + BOUNDARY + b"--"


def settings(engine: int, **more: object) -> dict[str, object]:
    """A gateway before one engine, that knows its model under an alias."""
    return {
        "listen": "127.0.0.1:0",
        "endpoints": [{"url": f"http://127.0.0.1:{engine}", "engine": "openai", "models": ["m"], "slots": 64}],
        "models": {"alias": {"to": "m"}},
        "admin": {"token": TOKEN},
        **more,
    }


@contextmanager
def gateway(**more: object) -> Iterator[Probed]:
    with probed({}, name="engine") as engine, probed(settings(engine.port, **more)) as gate:
        yield gate


def post(port: int, body: bytes, path: str = CHAT, **headers: str) -> int:
    """The status of an answer, 0 where the connection ended without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        return connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):  # it was refused before it was sent
        try:
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
    finally:
        connection.close()


def send(name: str, size: int, port: int) -> int:
    """Send a shape of about so many bytes; returns the status."""
    if name in FORMS:
        kind = "multipart/form-data; boundary=" + BOUNDARY.decode()
        return post(port, FORMS[name](size), "/v1/audio/transcriptions", **{"content-type": kind})
    if name in ADMIN:
        body = ADMIN[name](min(size, ADMIN_BYTES_MAX))
        return post(port, body, "/admin/endpoints", authorization=f"Bearer {TOKEN}")
    if name in PACKED:
        return post(port, gzip.compress(PACKED[name](size), 1), **{"content-encoding": "gzip"})
    return post(port, SHAPES[name](size))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--mib", type=float, default=64.0)
    args = parser.parse_args()
    size = int(args.mib * 1024 * 1024) - 1024
    worst = 0.0
    with gateway() as gate:
        post(gate.port, _BEGIN + b'"max_tokens":1}')
        for name in args.shapes or NAMES:
            gate.look()
            status = send(name, size, gate.port)
            seen = gate.look()
            worst = max(worst, seen["held_ms"])
            print(json.dumps({"shape": name, "status": status, **seen}), flush=True)
    print(f"the worst: held {worst} ms; at most {HELD_MS_MAX:g} ms are allowed")
    return worst > HELD_MS_MAX


if __name__ == "__main__":
    raise SystemExit(main())
