"""Which engine is this: told by what it answers, the cheapest and surest sign first.

Its model list names the maker for most; a page's series have a prefix; and a few serve a JSON object that no other
does. What gives no sign at all is `openai`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.base import Engine, Json, Model
from penstock.engines.llamacpp import LLAMACPP
from penstock.engines.lmdeploy import LMDEPLOY
from penstock.engines.ollama import OLLAMA
from penstock.engines.openai import OPENAI
from penstock.engines.sglang import SGLANG
from penstock.engines.tgi import TGI
from penstock.engines.trtllm import TRTLLM
from penstock.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (VLLM, SGLANG, TGI, LLAMACPP, TRTLLM, LMDEPLOY, OLLAMA, OPENAI)
}


def by_models(models: list[Model]) -> Engine | None:
    """By whom the model list says its models are owned."""
    owners = {model.fields.get("owned_by") for model in models}
    return next((engine for engine in ENGINES.values() if not owners.isdisjoint(engine.owned_by)), None)


def by_page(page: bytes) -> Engine | None:
    """By the prefix of a page's series."""
    lines = b"\n" + page
    for engine in ENGINES.values():
        if any(b"\n" + prefix in lines for prefix in engine.page_prefixes):
            return engine
    return None


def signs() -> Iterator[tuple[str, Engine]]:
    """Paths to ask, in this order, and whose sign is there."""
    return ((path, engine) for engine in ENGINES.values() for path, _ in engine.signs)


def by_sign(engine: Engine, path: str, page: Json) -> bool:
    """Whether what was found at the path is that engine's sign."""
    return any(path == its and all(key in page for key in keys) for its, keys in engine.signs)
