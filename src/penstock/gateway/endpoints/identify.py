"""Which engine is an endpoint, which models does it serve, and how many requests does it run at once?

The engine is identified when the endpoint is added and after every restart; its models are listed with every probe,
because LoRA adapters are loaded and unloaded at run time. Each question is one small GET.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from penstock.config.values import MODEL_CHARACTERS_MAX
from penstock.engines import recognise
from penstock.engines.base import Engine, Facts, Model
from penstock.engines.openai import OPENAI
from penstock.gateway.endpoints.probe import Ask, ProbeAnswer
from penstock.http.client.values import UpstreamErrorKind

MODELS_MAX = 10_000
NO_LIST = "its model list is invalid"


class Listing(msgspec.Struct, frozen=True):
    """The answer to a request for the list of models."""

    models: list[Model] | None  #: None: no answer, or an invalid one
    absent: bool = False  #: the engine has no such list
    refused: bool = False  #: the engine refused our key
    foreign: bool = False  #: the answer is not a list
    trouble: str = ""  #: a fault for the log; empty if there is none


async def list_models(ask: Ask, engine: Engine) -> Listing:
    """Ask an engine for its models and adapters. Returns a `Listing` even if there is no answer."""
    return listing_of(await ask(engine.models_path))


def listing_of(answer: ProbeAnswer) -> Listing:
    """Read a list of models from `answer`. Entries without a usable name, and those beyond the bound, are left out."""
    failure = answer.failure
    if failure is not None and failure.error.kind is UpstreamErrorKind.PROTOCOL:
        return Listing(None, trouble=f"its model list can't be read: {failure}")
    if answer.location:
        return Listing(None, trouble=f"its model list redirects to {answer.location[:200]}: write that in `url`")
    page = answer.json()
    data = _entries(page)
    if data is None:
        return Listing(
            None,
            answer.absent,
            answer.refuses_key,
            answer.ok,
            NO_LIST if answer.ok else "",
        )
    found: dict[str, Model] = {}
    for item in data[:MODELS_MAX]:
        if not isinstance(item, dict):
            continue
        name = item.get("id") or item.get("name")
        if isinstance(name, str) and 0 < len(name) <= MODEL_CHARACTERS_MAX:
            found[name] = Model(name, item)
    if isinstance(page, dict) and page.get("data", ()) is None and page.get("object") != "list":
        return Listing([], trouble=NO_LIST)
    more = f"of the {len(data)} models it lists only {MODELS_MAX} are known" if len(data) > MODELS_MAX else ""
    return Listing(list(found.values()), trouble=more)


def _entries(page: object) -> list[object] | None:
    """The entries of a list of models; None if `page` is none.

    Most engines have them in `data`, some in `models`, and some have no object around. Ollama without models returns
    null, and servers in Go may leave an empty list out.
    """
    if isinstance(page, dict):
        name = "data" if "data" in page else "models"
        if name not in page:
            return [] if page.get("object") == "list" else None
        page = page[name] if page[name] is not None else []
    return page if isinstance(page, list) else None


async def which_engine(ask: Ask, listing: Listing) -> Engine | None:
    """Identify the engine at an endpoint. Returns None if a question got no answer: ask again later.

    An engine that answers all questions and is not recognised counts as a plain OpenAI one.
    """
    if listing.models is None and not (listing.absent or listing.refused):
        return None
    if listing.models and (found := recognise.by_models(listing.models)):
        return found
    page = await ask("/metrics")
    if page.ok and (found := recognise.by_page(page.body)):
        return found
    answers = [page]
    for path, engine in recognise.signs():
        answer = await ask(path)
        document = answer.json()
        if isinstance(document, dict) and recognise.by_sign(engine, path, document):
            return engine
        answers.append(answer)
    return OPENAI if all(answer.status for answer in answers) else None


async def learn_facts(ask: Ask, engine: Engine, *, changing: bool = False) -> tuple[Facts, bool]:
    """Ask an engine for its facts. Returns them, and True if each question got an answer.

    `changing` asks only for facts that change while the engine runs. All questions are sent at once, because a new
    endpoint is not used before they are answered.
    """
    documents = [document for document in engine.documents if document.changes or not changing]
    answers = await asyncio.gather(*(ask(document.path) for document in documents))
    facts, said_all = Facts(), True
    for document, answer in zip(documents, answers, strict=True):
        page = answer.json()
        if isinstance(page, dict):
            facts = facts.over(document.facts(page))
        said_all = said_all and not answer.silent
    return facts, said_all


def context_tokens(model: Model, facts: Facts) -> int | None:
    """Returns the context length of `model` in tokens; None if the engine does not report it."""
    told = model.fields.get("max_model_len")
    if type(told) is not int:
        meta = model.fields.get("meta")  # llama.cpp, for one slot
        told = meta.get("n_ctx") if isinstance(meta, dict) else None
    return told if type(told) is int and told > 0 else facts.context_tokens


def listed(listing: Listing, facts: Facts, names: Mapping[str, str]) -> list[Model] | None:
    """Returns the models, with their context lengths if known; None if the models are not known.

    An engine that has no list may name its models in `facts`. `names`: by our names, the engine's; others pass.
    """
    models = listing.models
    if models is None and listing.absent and facts.models:
        models = [Model(name, {"id": name, "object": "model", "created": 0}) for name in facts.models]
    for model in models or ():
        if (tokens := context_tokens(model, facts)) is not None and model.fields.get("max_model_len") is None:
            model.fields["max_model_len"] = tokens
    return models if models is None or not names else _in_our_names(models, names)


def _in_our_names(models: list[Model], names: Mapping[str, str]) -> list[Model]:
    listed, taken = {model.id: model for model in models}, {*names, *names.values()}
    found = [(ours, listed[theirs]) for ours, theirs in names.items() if theirs in listed]
    renamed = [Model(ours, {"root": model.id, **model.fields, "id": ours}) for ours, model in found]
    return renamed + [model for model in models if model.id not in taken]
