"""Does an engine refuse a request because of its size, or of pictures, sounds or videos that its model does not take?

Another endpoint of the same model may have a larger context or another build, so such a refusal is not final. The words
are those of vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM, LMDeploy, OpenAI and Anthropic. One that is missed passes on as
any other refusal.
"""

from __future__ import annotations

import re

from penstock.core.values.catalogue import Failure

STATUSES = frozenset({400, 413, 422})
_LOOKED_AT_BYTES = 4096  # an error quotes the request behind its own words, if it does
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


def refuses(status: int, body: bytes | bytearray, *, has_media: bool) -> Failure | None:
    """Returns the subject of a refusal: the request's size or its kind, or None.

    `has_media`: the request holds more than text.
    """
    head = bytes(body[:_LOOKED_AT_BYTES])
    if status == 413 or _SIZE.search(head) is not None:
        return Failure.TOO_LONG
    return Failure.MODALITY if has_media and _MODALITY.search(head) is not None else None
