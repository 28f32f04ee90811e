"""Does an engine refuse a request because of its size, of pictures, sounds or videos that its model does not take, or
because it was started without what the request needs?

Another endpoint of the same model may have a larger context, another build or other flags, so such a refusal is not
final. The words are those of vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM, LMDeploy, Ollama, OpenAI and Anthropic. One
that is missed passes on as any other refusal.

What is missing is read from the beginning of the message, because engines quote the request behind their own words.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.values.catalogue import Failure

NO_SUCH_PATH = frozenset({404, 405, 410})  # or the engine does not have the model, or the stored answer
STATUSES = frozenset({400, 413, 422, 500, 501}) | NO_SUCH_PATH
_LOOKED_AT_BYTES = 4096  # an error quotes the request behind its own words, if it does
_SIZES = frozenset({400, 413, 422})
_SIZE = re.compile(
    rb"context[ _](?:length|window|size)|exceed_context_size|max_(?:model|seq|input)_len|session_len"
    rb"|(?:prompt|input|request) is too (?:long|large)|must have less than \d+ tokens"
    rb"|`inputs` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
_KIND = rb"(?:image|picture|vision|audio|sound|video|multi-?modal)"
_MODALITY = re.compile(
    _KIND + rb"[^\"]{0,80}(?:not support|unsupported|not allowed|not enabled|disabled)"
    rb"|(?:not support|unsupported|not a|no)[^\"]{0,40}" + _KIND + rb"|at most 0 " + _KIND,
    re.IGNORECASE,
)
#: What an engine says of a path that it does not have, if its error has the form of an API's.
_NO_FILE = re.compile(r"(?:404:? )?(?:(?:file|page|path|route|endpoint|url) )?not found\.?|method not allowed\.?", re.I)
#: An engine without a flag that the request needs. The first words are the engine's, so no request can imitate them.
_STARTED_WITHOUT = re.compile(
    r"(?:\"?\w+\"? tool choice|tool_choice=|tools? param|chat template is passed|you must set"
    r"|please (?:launch|start|add)|this (?:server|model)|the (?:current )?model|reasoning parser|tool call parser)"
    r".{0,300}?(?:--[a-z][a-z-]+|\bdoes not support \w+ api)"
    r"|unsupported param: tools|\S{1,256} does not support tools$"
    r"|[`\"]?(?:tools?|tool (?:calls?|calling|use)|function calling)[`\"]? (?:is|are) not"
    r" (?:supported|enabled|implemented)",
    re.IGNORECASE | re.DOTALL,
)
_OF_TOOLS = re.compile(r"tool|jinja|function calling", re.IGNORECASE)
_OF_PATH = re.compile(
    r"embedding|rerank|scor|pool|classif|completion|infill|generate|generation|transcri|\bapi$", re.IGNORECASE
)


def refuses(status: int, body: bytes | bytearray, *, has_media: bool) -> Failure | None:
    """Returns the subject of a refusal: the request's size, its kind, or what the engine lacks; None: another one.

    `has_media`: the request holds more than text.
    """
    head = bytes(body[:_LOOKED_AT_BYTES])
    if status in _SIZES:
        if status == 413 or _SIZE.search(head) is not None:
            return Failure.TOO_LONG
        if has_media and _MODALITY.search(head) is not None:
            return Failure.MODALITY
    words = _message(head)
    if status in NO_SUCH_PATH and (words is None or _NO_FILE.fullmatch(words)):
        return Failure.NO_PATH
    without = None if words is None else _STARTED_WITHOUT.match(words)
    if without is None:
        return None
    if _OF_TOOLS.search(without[0]):
        return Failure.NO_TOOLS
    return Failure.NO_PATH if _OF_PATH.search(without[0]) else Failure.NO_FEATURE


def _message(body: bytes) -> str | None:
    """Returns an error's message; None if the body is not an error of an API."""
    try:
        page = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    while isinstance(page, dict):
        page = next((page[name] for name in ("error", "message", "detail") if page.get(name)), None)
    return page.strip() if isinstance(page, str) else None
