"""Checks an input file. The file is read line by line as its bytes come; problems have line numbers.

Pure, and bounded: the reader keeps the line being read (up to `line_bytes_max`), a digest of eight bytes per
`custom_id`, and the first `PROBLEMS_MAX` problems. A file is read twice: at its upload, so that a bad file is refused
at once, and before its batch runs, when the batch's endpoint is known.

Prompts that begin alike should run one after another, so that engines find them in their caches. So each request gets a
number, made of a hash of its prompt's first 256 bytes and one of its first 2048. Sorted by it, prompts that share a
short beginning stand together, and among these the ones that share a long beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from zlib import crc32

import msgspec

from penstock.batch.values import LineProblem, NewItem

PROBLEMS_MAX = 1_000  # listed one by one; further lines with problems are only counted
CUSTOM_ID_CHARACTERS_MAX = 512
MODEL_CHARACTERS_MAX = 256
MODELS_MAX = 100  # in one batch: the runner has a stream for each
_NEAR_BYTES, _FAR_BYTES = 256, 2048
_BOM = b"\xef\xbb\xbf"


class Wrong(Exception):  # noqa: N818 - it says what it is
    """A line is no request: `code` for programs, the text for the client, `param` the field at fault, if any."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class _InputLine(msgspec.Struct, gc=False):
    custom_id: object = None
    method: object = None
    url: object = None
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct, gc=False):
    model: object = None
    stream: object = None
    background: object = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class ItemRequest(msgspec.Struct, frozen=True, gc=False):
    """A line of an input file, read; `prefix` is the number that brings alike prompts together."""

    custom_id: str
    url: str
    model: str
    prefix: int
    body: bytes


_line = msgspec.json.Decoder(_InputLine).decode
_body = msgspec.json.Decoder(_Body).decode


class InputReader:
    """Reads one input file: call `feed` with its bytes in order, then `end` once.

    `urls` returns whether a path is allowed. `endpoint` is the one path that the batch asks for, None before there is a
    batch. `on_item` gets each good line, also after a bad one.
    """

    def __init__(
        self,
        *,
        urls: Callable[[str], bool],
        lines_max: int,
        line_bytes_max: int,
        endpoint: str | None = None,
        on_item: Callable[[NewItem], None] | None = None,
    ) -> None:
        self._urls = urls
        self._lines_max = lines_max
        self._line_bytes_max = line_bytes_max
        self._endpoint = endpoint
        self._on_item = on_item
        self._rest = bytearray()
        self._skipping = False  # True: within a line that is too long
        self._at = 0  # offset of the current line in the file
        self._line = 0
        self._seen: set[bytes] = set()
        self._ended = False
        self.models: dict[str, int] = {}  # the models asked for, and the first line of each
        self.requests = 0
        self.problems: list[LineProblem] = []
        self.more_problems = 0

    def feed(self, data: bytes) -> None:
        """Read `data`, the next bytes of the file. Bad content is collected in `problems`, not raised."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._piece(data[begin:end])
            self._take(1)
            begin = end + 1
        self._piece(data[begin:])

    def end(self) -> None:
        """The file is whole: read its last line, and complete `problems`. An empty file is a problem, too."""
        if self._rest or self._skipping:
            self._take(0)
        if not self.requests and not self.problems:
            self._wrong(Wrong("empty_file", "The file is empty. A batch needs at least one request."), None)
        if self.more_problems:
            text = f"{self.more_problems} more lines have problems; only the first {PROBLEMS_MAX} are listed."
            self.problems.append(LineProblem("more_errors", text))
            self.more_problems = 0

    # --- lines ------------------------------------------------------------------------------------------------

    def _piece(self, data: bytes) -> None:
        """Add some bytes to the line being read."""
        if self._skipping:
            self._at += len(data)
        elif len(self._rest) + len(data) > self._line_bytes_max:
            self._skipping = True
            self._at += len(self._rest) + len(data)
            self._rest.clear()
        else:
            self._rest += data

    def _take(self, break_bytes: int) -> None:
        """The line is whole: read it. `break_bytes` is the length of its line break, 0 at the end of the file."""
        self._line += 1
        line, self._rest = bytes(self._rest), bytearray()
        at, self._at = self._at, self._at + len(line) + break_bytes
        if self._skipping:
            self._skipping = False
            text = f"The line is longer than {self._line_bytes_max} bytes."
            self._wrong(Wrong("line_too_large", text), self._line)
            return
        if not line.strip() and not line.endswith(b"\r"):
            return  # an empty line is no request, but no problem either
        try:
            self._accept(line, at)
        except Wrong as wrong:
            self._wrong(wrong, self._line)

    def _accept(self, line: bytes, at: int) -> None:
        if self._line > self._lines_max:
            if not self._ended:
                self._ended = True
                raise Wrong("too_many_lines", f"The file has more than {self._lines_max} lines.")
            return
        request = read_line(line, first=self._line == 1)
        if not self._urls(request.url):
            raise Wrong("invalid_url", f"`{request.url[:100]}` is not served for batches.", "url")
        if self._endpoint is not None and request.url != self._endpoint:
            text = f"The line's url `{request.url[:100]}` is not the batch's endpoint `{self._endpoint}`."
            raise Wrong("mismatched_url", text, "url")
        digest = hashlib.blake2b(request.custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest in self._seen:
            text = f"The custom_id `{request.custom_id[:100]}` was used in an earlier line; each has to be unique."
            raise Wrong("duplicate_custom_id", text, "custom_id")
        self._seen.add(digest)
        if request.model not in self.models and len(self.models) >= MODELS_MAX:
            raise Wrong("too_many_models", f"One batch may ask for {MODELS_MAX} models.", "body.model")
        self.models.setdefault(request.model, self._line)
        self.requests += 1
        if self._on_item is not None:
            item = NewItem(self._line, request.custom_id, request.model, request.prefix, at, len(line))
            self._on_item(item)

    def _wrong(self, wrong: Wrong, line: int | None) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(LineProblem(wrong.code, str(wrong), wrong.param, line))
        else:
            self.more_problems += 1


def read_line(line: bytes, *, first: bool = False) -> ItemRequest:
    """Returns a line as a request. Raises `Wrong` if it is none. `first` is True for the first line of a file."""
    if first and line.startswith(_BOM):
        raise Wrong("byte_order_mark", "The file begins with a byte order mark. Save it as UTF-8 without one.")
    if line.endswith(b"\r"):
        raise Wrong("invalid_line_ending", "The line ends with CRLF. Lines end with LF alone.")
    try:
        fields = _line(line)
        str(line, "utf-8")
    except UnicodeDecodeError as error:
        raise Wrong("invalid_encoding", f"The line is not valid UTF-8 (byte {error.start}).") from None
    except msgspec.ValidationError:
        raise Wrong("invalid_json_line", "The line is not a JSON object.") from None
    except (msgspec.DecodeError, RecursionError):
        raise Wrong("invalid_json_line", "This line is not parseable as valid JSON.") from None
    custom_id, url = fields.custom_id, fields.url
    if not isinstance(custom_id, str) or not custom_id:
        raise Wrong("missing_required_parameter", "`custom_id` has to be a non-empty string.", "custom_id")
    if len(custom_id) > CUSTOM_ID_CHARACTERS_MAX:
        text = f"`custom_id` has more than {CUSTOM_ID_CHARACTERS_MAX} characters."
        raise Wrong("invalid_custom_id", text, "custom_id")
    if "\0" in custom_id:
        raise Wrong("invalid_custom_id", "`custom_id` holds a null character.", "custom_id")
    if fields.method != "POST":
        raise Wrong("invalid_method", "`method` has to be POST.", "method")
    if not isinstance(url, str) or not url:
        raise Wrong("missing_required_parameter", "`url` is missing.", "url")
    body = bytes(fields.body)
    if not body:
        raise Wrong("missing_required_parameter", "`body` is missing.", "body")
    model, prefix = _read_body(body)
    return ItemRequest(custom_id, url, model, prefix, body)


def _read_body(body: bytes) -> tuple[str, int]:
    """Returns the model that the body asks for, and the number of its prompt's beginning. Raises `Wrong`."""
    try:
        fields = _body(body)
    except (msgspec.DecodeError, RecursionError):
        raise Wrong("invalid_body", "`body` has to be a JSON object.", "body") from None
    if fields.stream not in (None, False):
        raise Wrong("stream_unsupported", "`stream` can't be used in a batch.", "body.stream")
    if fields.background not in (None, False):  # its answer says that it is queued, and would be the item's
        text = "`background` can't be used in a batch, which waits for each response."
        raise Wrong("background_unsupported", text, "body.background")
    if not isinstance(fields.model, str) or not fields.model:
        raise Wrong("missing_required_parameter", "`model` has to be a non-empty string.", "body.model")
    if len(fields.model) > MODEL_CHARACTERS_MAX or "\0" in fields.model:
        text = f"`model` has more than {MODEL_CHARACTERS_MAX} characters, or a null character."
        raise Wrong("invalid_model", text, "body.model")
    prompt = bytes(fields.messages) or bytes(fields.prompt) or bytes(fields.input)
    # 63 bits, because a database's integer has a sign.
    return fields.model, (crc32(prompt[:_NEAR_BYTES]) >> 1) << 32 | crc32(prompt[:_FAR_BYTES])
