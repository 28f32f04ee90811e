"""Files and batches: whether they are served, their storage, and each tenant's quota."""

from __future__ import annotations

from typing import Literal

from penstock.config import values
from penstock.config.problems import Document, Found, missing_extra, problem
from penstock.config.sections.section import Section, setting


class BatchLimits(Section):
    """Quotas of each tenant, and bounds of one file."""

    files: values.Whole = setting(1_000, "Files of a tenant, results included. More: 429.", ge=1)
    bytes: values.Size = setting(10 * 2**30, "Total bytes of its files. More: 429.", ge=1)
    batches: values.Whole = setting(100, "Unfinished batches of a tenant. More: 429.", ge=1)
    items: values.Whole = setting(1_000_000, "Requests in its unfinished batches. More: 429.", ge=1)
    max_file: values.Size = setting(200 * 2**20, "The largest upload.", ge=1)
    max_lines: values.Whole = setting(50_000, "Lines of one file.", ge=1, le=1_000_000)
    max_line: values.Size = setting(4 * 2**20, "The longest line of a file.", ge=1_000, le=64 * 2**20)


class BatchSection(Section):
    """OpenAI's files and batches API. Their requests run in the lowest band.

    `data` enables them, or `url` with `store: postgres`. Issued keys (`identity.made_keys`) and the ledger of use
    (`usage`) are stored there too.
    """

    data: values.OptionalFile = setting(
        None, "The folder of the SQLite file; created if missing. For one gateway only."
    )
    store: Literal["sqlite", "postgres"] = setting(
        "sqlite", "`postgres`: a database that several gateways may share (extra `postgres`)."
    )
    url: values.OptionalSecret = setting(
        None, "With `store: postgres`: `postgresql://user:password@host/database`. Never logged or shown."
    )
    serve: values.Bool = setting(
        default=True, meaning="`false`: the store holds issued keys and the ledger only; no files and batches."
    )
    keep: values.Duration = setting(30 * 86_400.0, "Default retention of files.", ge=3600)
    claim_timeout: values.Duration = setting(
        30.0, "With a shared store: how long a silent gateway's claims on requests last.", ge=1
    )
    limits: BatchLimits = BatchLimits()

    @property
    def has_store(self) -> bool:
        return self.data is not None or self.store == "postgres"

    @property
    def enabled(self) -> bool:
        return self.serve and self.has_store


def batch_checks(document: Document) -> Found:
    batch = BatchSection.valid(document.get("batch"))
    if batch is None:
        return
    if batch.store == "postgres":
        form = "write `postgresql://user:password@host/database`"
        if batch.url is None:
            yield problem(("batch", "url"), "is required with `store: postgres`", form)
        elif not batch.url.get_secret_value().startswith(("postgresql://", "postgres://")):
            yield problem(("batch", "url"), "is not a PostgreSQL URL", form)
        if batch.data is not None:
            message = "is for `store: sqlite`; with `postgres` everything is in the database"
            yield problem(("batch", "data"), message, "remove it")
        yield from missing_extra(("batch", "store"), "needs psycopg, which is not installed", "postgres", "psycopg")
    elif batch.url is not None:
        yield problem(("batch", "url"), "is for `store: postgres`, and `store` is `sqlite`")
    if batch.limits.max_line > batch.limits.max_file:
        yield problem(("batch", "limits", "max_line"), "is more than `batch.limits.max_file`")
