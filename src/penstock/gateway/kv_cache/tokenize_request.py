"""The query for an engine's `/tokenize` that returns exactly the tokens of a request.

Chat is tokenized as templated, so the query contains the template's input: messages, tools, and its arguments. vLLM
reads some of them (`reasoning_effort`, `documents`) only from the arguments there, so they are moved into these.
Requests without an exact query are skipped: pictures and sounds, several prompts, truncated prompts, other APIs.
"""

from __future__ import annotations

import re
from array import array

import msgspec

LATE_S = 0.5  # an answer to a look-up that took longer came too late for most
PROMPT_BYTES_MAX = 4 << 20  # a million tokens; more is not worth a second transfer


class Question(msgspec.Struct, frozen=True):
    """How to get a prompt's tokens: the query for `/tokenize`, or the tokens if the request has them."""

    body: bytes  #: for `/tokenize`; empty if the request has the tokens itself
    tokens: array[int] | None = None
    salt: str = ""
    model: str = ""  #: that `body` names


class _Fields(msgspec.Struct, gc=False):
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: msgspec.Raw = msgspec.Raw()
    continue_final_message: msgspec.Raw = msgspec.Raw()
    add_special_tokens: msgspec.Raw = msgspec.Raw()
    reasoning_effort: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    prompt_embeds: msgspec.Raw = msgspec.Raw()
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw()
    cache_salt: object = None


_decode = msgspec.json.Decoder(_Fields).decode
_NOTHING = (b"", b"null")
_PASSED = (
    "messages", "tools", "tool_choice", "chat_template", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "reasoning_effort",
)  # fmt: skip
# A part of a message that is no text. Found in a text too, it only costs the hit.
_NO_TEXT = re.compile(rb'"type"\s*:\s*"[a-z_]*(?:image|audio|video|file|media)')


def question(path: str, body: bytes, model: str) -> Question | None:
    """Returns the query for a request; None if there is no exact one."""
    if path not in ("/v1/chat/completions", "/v1/completions") or len(body) > PROMPT_BYTES_MAX:
        return None
    try:
        fields = _decode(body)
        salt = fields.cache_salt if isinstance(fields.cache_salt, str) else ""
        if any(bytes(raw) not in _NOTHING for raw in (fields.prompt_embeds, fields.truncate_prompt_tokens)):
            return None
        if path == "/v1/completions":
            return _completion(fields, model, salt)
        return _chat(fields, model, salt)
    except (msgspec.DecodeError, RecursionError, OverflowError):
        return None


def _completion(fields: _Fields, model: str, salt: str) -> Question | None:
    prompt = msgspec.json.decode(fields.prompt) if bytes(fields.prompt) not in _NOTHING else None
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list):
        ids = bool(prompt) and all(type(token) is int and token >= 0 for token in prompt)
        return Question(b"", array("I", prompt), salt) if ids else None
    if not isinstance(prompt, str):
        return None
    asked: dict[str, object] = {"model": model, "prompt": prompt}
    if bytes(fields.add_special_tokens) not in _NOTHING:
        asked["add_special_tokens"] = fields.add_special_tokens
    return Question(msgspec.json.encode(asked), None, salt, model)


def _chat(fields: _Fields, model: str, salt: str) -> Question | None:
    if bytes(fields.messages) in _NOTHING or _NO_TEXT.search(fields.messages):
        return None
    asked: dict[str, object] = {"model": model}
    for name in _PASSED:
        if bytes(raw := getattr(fields, name)) not in _NOTHING:
            asked[name] = raw
    arguments = _template_arguments(fields)
    if arguments:
        asked["chat_template_kwargs"] = arguments
    return Question(msgspec.json.encode(asked), None, salt, model)


def _template_arguments(fields: _Fields) -> dict[str, object]:
    given = bytes(fields.chat_template_kwargs)
    arguments: dict[str, object] = {} if given in _NOTHING else msgspec.json.decode(given, type=dict[str, object])
    if bytes(fields.documents) not in _NOTHING:
        arguments["documents"] = fields.documents
    if bytes(fields.reasoning_effort) not in _NOTHING:
        arguments["reasoning_effort"] = fields.reasoning_effort
        arguments.setdefault("enable_thinking", bytes(fields.reasoning_effort) != b'"none"')
    return arguments
