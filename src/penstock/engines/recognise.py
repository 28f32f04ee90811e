"""Which engine is this? Recognised by its answers, the cheapest and surest sign first.

The model list of most engines names their maker; the series of a page have a prefix; and some engines serve a JSON
object that no other does. An engine that gives no sign at all is `openai`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from penstock.engines.base import Engine, Json, Model
from penstock.engines.page import plain

PENSTOCK = "penstock"  # a gateway's `name` in its documents: it speaks its callers' dialects and is no engine
#: The engines' names, which are those of their modules, the most frequent first.
NAMES = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "lmdeploy", "ollama", "openai")


class _Engines(Mapping[str, Engine]):
    """All engines by name. One is imported when it is looked at, so a gateway before vLLM imports no other dialect."""

    def __getitem__(self, name: str) -> Engine:
        if name not in NAMES:
            raise KeyError(name)
        engine: Engine = getattr(import_module(f"penstock.engines.{name}"), name.upper())
        return engine

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


ENGINES = _Engines()


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
