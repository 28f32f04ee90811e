"""Which engine is this? Recognised by its answers, the cheapest and surest sign first.

The model list of most engines names their maker; the series of a page have a prefix; and some engines serve a JSON
object that no other does. An engine that gives no sign at all is `openai`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.base import Engine, Json, Model
from penstock.engines.llamacpp import LLAMACPP
from penstock.engines.lmdeploy import LMDEPLOY
from penstock.engines.ollama import OLLAMA
from penstock.engines.openai import OPENAI
from penstock.engines.page import plain
from penstock.engines.sglang import SGLANG
from penstock.engines.tgi import TGI
from penstock.engines.trtllm import TRTLLM
from penstock.engines.vllm import VLLM

PENSTOCK = "penstock"  # a gateway's `name` in its documents: it speaks its callers' dialects and is no engine

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (VLLM, SGLANG, TGI, LLAMACPP, TRTLLM, LMDEPLOY, OLLAMA, OPENAI)
}


def by_models(models: list[Model]) -> Engine | None:
    """Returns the engine that its model list names as the models' owner; None if it names none that we know."""
    owners = {model.fields.get("owned_by") for model in models}
    return next((engine for engine in ENGINES.values() if not owners.isdisjoint(engine.owned_by)), None)


def by_page(page: bytes) -> Engine | None:
    """Returns the engine by the prefix of the page's series, if known."""
    lines = b"\n" + plain(page)
    for engine in ENGINES.values():
        if any(b"\n" + prefix in lines for prefix in engine.page_prefixes):
            return engine
    return None


def signs() -> Iterator[tuple[str, Engine]]:
    """Returns the paths to ask, in order, each with the engine that it indicates."""
    return ((path, engine) for engine in ENGINES.values() for path, _ in engine.signs)


def by_sign(engine: Engine, path: str, page: Json) -> bool:
    """Returns True if `page`, found at `path`, is the sign of `engine`."""
    return page.get("name") != PENSTOCK and any(
        path == its and all(key in page for key in keys) for its, keys in engine.signs
    )
