"""What is read of a body: of a request the fields that scheduling looks at, and those that its prompt is made of; of an
answer what it says it cost. Values, read by msgspec.
"""

from __future__ import annotations

from typing import Any

import msgspec

NOTHING = msgspec.Raw()


class Text(msgspec.Struct, gc=False):
    """The fields of a body that its prompt is made of, raw. An absent one is empty."""

    system: msgspec.Raw = NOTHING  #: Anthropic's
    instructions: msgspec.Raw = NOTHING  #: those of OpenAI's responses
    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING
    inputs: msgspec.Raw = NOTHING  #: TGI's
    tools: msgspec.Raw = NOTHING
    cache_salt: msgspec.Raw = NOTHING
    lora_path: msgspec.Raw = NOTHING  #: SGLang's adapter; elsewhere it is the model


class Fields(Text, gc=False):
    """All that is read of a body, as it came and of any type."""

    model: object = None
    stream: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    stream_options: object = msgspec.UNSET
    user: object = None
    service_tier: object = None
    priority: object = None
    parameters: object = None  #: TGI's
    sampling_params: object = None  #: SGLang's own
    options: object = None  #: Ollama's
    n_predict: object = None  #: llama.cpp's
    previous_response_id: object = None


class Peek(msgspec.Struct, frozen=True, gc=False):
    """What scheduling needs of a body."""

    model: str | None
    stream: bool
    whole: bool = False  #: it shall not stream, it says
    output_tokens_max: int | None = None
    stream_options: object = msgspec.UNSET  #: these four as they came, of any type
    user: object = None
    service_tier: object = None
    priority: object = None
    previous_response: object = None  #: the answer this one goes on from
    text: Text | None = None  #: what the prompt is made of; None: no JSON


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class UsageFields(msgspec.Struct):
    """Usage as OpenAI's chat and completions, OpenAI's responses and Anthropic's messages have it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


def field_reader(name: str) -> msgspec.json.Decoder[Any]:
    """Decodes this one field of an object, as `value`; None where it is absent."""
    return msgspec.json.Decoder(msgspec.defstruct("Field", [("value", object, msgspec.field(name=name, default=None))]))
