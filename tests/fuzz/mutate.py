"""Inputs made of others: what `make test` has instead of a fuzzer that follows the code's branches.

Seeded, so a failure is replayed by its number. An input that breaks a target is made as small as it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

PIECES: dict[str, tuple[bytes, ...]] = {  # what a random byte would hardly hit
    "request_parser": (
        *(b"\r\n", b"\n", b"GET / HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 5\r\n", b"5\r\nhello\r\n"),
        *(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b" RTSP/1.0"),
    ),
    "proxy_header": (
        *(
            b"\r\n\r\n\x00\r\nQUIT\n",
            b"PROXY TCP4 ",
            b"PROXY UNKNOWN",
            b"\r\n",
            b"\x21\x11\x00\x0c",
            b"\x20\x00\x00\x00",
        ),
        *(b" 65535 443\r\n", b"::ffff:1.2.3.4 ", b"\n", b" "),
    ),
    "response_parser": (
        *(b"\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"content-length: 2\r\n", b"0\r\n\r\n"),
        *(b"transfer-encoding: chunked\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"connection: close\r\n"),
    ),
    "stream": (
        *(b"\n\n", b"data: ", b"[DONE]", b'{"choices":[]', b'"usage":{"prompt_tokens":1,"completion_tokens":2}'),
        *(b"\r\n", b'"finish_reason":"abort"', b"event: error\n"),
    ),
    "hidden": (
        *(b"\n\n", b"\r\n\r\n", b"\r\r", b"data: ", b"data:[DONE]", b'{"choices":[]', b'"usage":null', b": ping\n\n"),
        b'"choices": [],"usage":{"prompt_tokens":1,"completion_tokens":2}}',
    ),
    "opening": (
        *(b"\n\n", b"\r\r", b"data: ", b"event: ping\n", b"event: error\n", b": \n\n", b"[DONE]", b"id: 1\n", b"{"),
        *(b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', b'{"error":{}}', b'{"done":true}\n'),
    ),
    "packed": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff", b"\x78\x9c", b"\x03\x00", b"\x00\x00\x00\xff\xff"),
    "form": (
        *(
            b"--edge",
            b"--edge--",
            b"\r\n\r\n",
            b'Content-Disposition: form-data; name="',
            b"name=",
            b'"',
            b"; filename*=",
        ),
        b'content-disposition: form-data; name="model"\r\n\r\n',
    ),
    "body": (
        *(
            b"\\ud83d",
            b"\\ude00",
            b"\\",
            b'"',
            b'"n":',
            b'"best_of":2',
            b'"prompt":[1,"a",[2]]',
            b'"sampling_params":{',
        ),
        *(b'"model":"m"', b"{", b"}", b"[", b"]", b",", b'"messages":', b'"stream":true', b'"stream_options":{}'),
        *(b"\\u0000", b"1e999", b"null", b'"priority":', b'{"model":"m"}', b"\xff"),
    ),
    "multipart": (
        *(b'name="', b"\r\n\r\n", b'"'),
        *(b"--edge", b"--edge--", b"\r\n", b'Content-Disposition: form-data; name="model"', b"; filename=x"),
        b'Content-Disposition: form-data; name="file"; filename="a"',
    ),
    "batch_lines": (
        *(b"\n", b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}'),
        b"\xef\xbb\xbf",
    ),
    "settings": (
        *(b"- ", b"\n", b"url: http://a:1", b"slots: 4", b"${SET}", b"${", b"&a ", b"*a", b"{", b"}"),
        b"!!python/object",
    ),
}


def mutated(corpus: list[bytes], name: str, seed: int) -> bytes:
    """One input, made of one or two of the corpus by one to eight changes."""
    random = Random(f"{name} {seed}")
    data = bytearray(random.choice(corpus))
    for _ in range(random.randrange(1, 9)):
        at, size = random.randrange(len(data) + 1), random.randrange(1, 9)
        change = random.randrange(6)
        if change == 0 and data:
            data[at % len(data)] = random.randrange(256)
        elif change == 1:
            del data[at : at + size]
        elif change == 2:
            data[at:at] = random.choice(PIECES[name])
        elif change == 3:
            data[at:at] = data[at : at + size * 4]
        elif change == 4:
            other = random.choice(corpus)
            data[at:] = other[random.randrange(len(other) + 1) :]
        else:
            data[at : at + size] = random.randbytes(size)
    return bytes(data[:4096])


def smallest(data: bytes, breaks: Callable[[bytes], bool]) -> bytes:
    """A part of an input that still breaks: no piece of half its length, a quarter … one byte can be left out."""
    size = max(1, len(data) // 2)
    while True:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            if breaks(shorter):
                data = shorter
            else:
                at += size
        if size == 1:
            return data
        size //= 2
