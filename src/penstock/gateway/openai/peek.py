"""What scheduling needs of a body, however it was written. Values."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.values.request import Contents
from penstock.gateway.openai.fields import Text
from penstock.gateway.openai.splice import Body


class Peek:
    """A body's values for scheduling."""

    __slots__ = (
        "answers", "background", "model", "output_tokens_max", "previous_response", "priority", "service_tier",
        "stream", "stream_options", "text", "user", "whole",
    )  # fmt: skip

    def __init__(
        self,
        model: str | None,
        *,
        stream: bool,
        whole: bool = False,
        output_tokens_max: int | None = None,
        answers: int = 1,
        stream_options: object = msgspec.UNSET,
        user: object = None,
        service_tier: object = None,
        priority: object = None,
        previous_response: object = None,
        text: Text | None = None,
        background: bool = False,
    ) -> None:
        self.model: Final = model
        self.stream: Final = stream
        self.whole: Final = whole  #: streaming is explicitly off
        self.output_tokens_max = output_tokens_max  #: its key may allow less
        self.answers: Final = answers  #: wanted of each input
        self.stream_options: Final = stream_options  #: these five as they came, of any type
        self.user: Final = user
        self.service_tier: Final = service_tier
        self.priority: Final = priority
        self.previous_response: Final = previous_response  #: the answer this one goes on from
        self.text: Final = text  #: the prompt's fields; None: not JSON
        self.background: Final = background  #: it may be computed after it was answered


class Read:
    """A body that was read."""

    __slots__ = ("body", "contents", "peek")

    def __init__(
        self,
        peek: Peek,
        body: Body,
        contents: Contents,
    ) -> None:
        self.peek: Final = peek
        self.body: Final = body
        self.contents: Final = contents
