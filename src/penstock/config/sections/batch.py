"""Batch: are files and batches served, where are they kept, and how much may each tenant keep?"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import ValidationError

from penstock.config import values
from penstock.config.problems import Location, Problem
from penstock.config.sections.section import Section, setting


class BatchLimits(Section):
    """What each tenant may keep, and how large one file may be."""

    files: values.Whole = setting(1_000, "Files of one tenant, those that batches made included. More: 429.", ge=1)
    bytes: values.Size = setting(10 * 2**30, "Bytes of all its files together. More: 429.", ge=1)
    batches: values.Whole = setting(100, "Batches of one tenant that have not ended. More: 429.", ge=1)
    items: values.Whole = setting(1_000_000, "Requests in all of these together. More: 429.", ge=1)
    max_file: values.Size = setting(200 * 2**20, "The largest file that can be uploaded.", ge=1)
    max_lines: values.Whole = setting(50_000, "Lines of one file.", ge=1, le=1_000_000)
    max_line: values.Size = setting(4 * 2**20, "The longest line of a file.", ge=1_000, le=64 * 2**20)


class BatchSection(Section):
    """Files and batches, OpenAI's API in front of engines that have none. Their requests run in the lowest band.

    `data` switches them on, or with `store: postgres` the database's `url`. Made keys (`identity.made_keys`) are kept
    there, too.
    """

    data: values.OptionalFile = setting(
        None, "The folder that holds them, in one SQLite file. Made if it is not there; one gateway at a time."
    )
    store: Literal["sqlite", "postgres"] = setting(
        "sqlite", "`postgres` keeps them in a database that several gateways may share (extra `postgres`)."
    )
    url: values.OptionalSecret = setting(
        None, "With `store: postgres`: `postgresql://user:password@host/database`. Never logged or shown."
    )
    serve: values.Bool = setting(
        default=True, meaning="`false`: what is kept there is kept for made keys only; there are no files and batches."
    )
    keep: values.Duration = setting(30 * 86_400.0, "How long files are kept that say nothing else.", ge=3600)
    claim_timeout: values.Duration = setting(
        30.0, "How long a gateway's claims on requests outlive its last word, where several share a store.", ge=1
    )
    limits: BatchLimits = BatchLimits()

    @property
    def has_store(self) -> bool:
        return self.data is not None or self.store == "postgres"

    @property
    def enabled(self) -> bool:
        """Whether there are files and batches."""
        return self.serve and self.has_store


def batch_checks(document: Mapping[str, object]) -> Iterator[tuple[Location, Problem]]:
    try:
        batch = BatchSection.model_validate(document.get("batch"))
    except ValidationError:
        return
    if batch.store == "postgres":
        if batch.url is None:
            yield _problem(
                "url", "is needed with `store: postgres`", "write `postgresql://user:password@host/database`"
            )
        elif not batch.url.get_secret_value().startswith(("postgresql://", "postgres://")):
            yield _problem("url", "is no PostgreSQL URL", "write `postgresql://user:password@host/database`")
        if batch.data is not None:
            yield _problem("data", "is for `store: sqlite`; with `postgres` everything is in the database", "remove it")
        if importlib.util.find_spec("psycopg") is None:
            yield _problem("store", "needs psycopg, which is not installed", "pip install 'penstock-gateway[postgres]'")
    elif batch.url is not None:
        yield _problem("url", "is for `store: postgres`, and `store` is `sqlite`")
    if batch.limits.max_line > batch.limits.max_file:
        yield _problem("limits.max_line", "is more than `batch.limits.max_file`")


def _problem(key: str, message: str, suggestion: str | None = None) -> tuple[Location, Problem]:
    return ("batch", *key.split(".")), Problem(f"batch.{key}", message, suggestion)
