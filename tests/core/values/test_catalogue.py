"""The catalogue: each code has one sentence, each is used, and no other file has a sentence for one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from penstock.core.values.catalogue import Cause, EndpointState, Failure, Reason
from penstock.gateway.admin.pages import Pages
from tests.tidy import codes

SRC = Path(__file__).parents[3] / "src" / "penstock"
CATALOGUE = SRC / "core" / "values" / "catalogue.py"
MODULES = {path: path.read_text() for path in sorted(SRC.rglob("*.py")) if path != CATALOGUE}
SCRIPTS = {path: path.read_text() for path in sorted(SRC.rglob("*.js"))}
Row = Cause | Reason | Failure | EndpointState
ROWS: list[Row] = [*Cause, *Reason, *Failure, *EndpointState]


def test_the_codes_on_the_wire_are_these() -> None:
    assert " ".join(Cause) == (
        "no_backend warming unproven ejected held returning stuck slots_full preempted engine_queue prefill_full"
        " kv_full pace shunned class_share tenant_cap tenant_paused affinity session_memory session_paused"
        " no_decider paused turn"
    )
    by_status: dict[int, set[str]] = {}
    for reason in Reason:
        by_status.setdefault(reason.status, set()).add(reason)
    assert by_status == {
        400: {"bad_request", "context_length_exceeded"},
        401: {"unauthorized"},
        403: {"forbidden"},
        404: {"model_not_found", "path_not_found", "endpoint_not_found"},
        405: {"method_not_allowed"},
        408: {"client_timeout"},
        413: {"request_too_large"},
        415: {"unsupported_encoding"},
        426: {"websocket_unsupported"},
        429: {
            *("queue_full", "tenant_limit", "deadline_infeasible", "endpoint_overloaded", "overload"),
            *("queue_timeout", "deadline_missed", "displaced"),
        },
        431: {"header_too_large"},
        499: {"cancelled", "client_gone"},
        502: {"upstream_error", "stream_broken"},
        503: {"operator", "no_endpoint", "draining", "identity_unavailable"},
        504: {"upstream_timeout"},
        507: {"storage_full"},
    }
    assert " ".join(Failure) == (
        "connect stale reset busy server_error first_byte_timeout not_an_engine key_refused model_gone too_long"
        " modality no_path no_tools no_feature broken"
    )
    assert " ".join(EndpointState) == (
        "up down loading sleeping paused scaling stopping hung draining refused_key unproven stuck silent ejected held"
    )


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_every_row_has_a_sentence_that_stands_after_a_colon(row: Row) -> None:
    assert re.fullmatch(r"(WebSocket|[a-z]).*[a-z?=P]", row.sentence), row.sentence
    if isinstance(row, Cause | Reason):
        assert row.advice.endswith(".")
    if isinstance(row, EndpointState):
        assert row.advice or row.tone != "bad", "whoever looks at a fault learns what to do"
        assert not row.advice or row.tone in ("bad", "busy")


def test_a_caller_reads_the_sentence_and_whether_to_come_back() -> None:
    assert Reason.QUEUE_TIMEOUT.message == "The request timed out in the queue. Please try again later."
    assert Reason.OPERATOR.message == "An operator cancelled the request."
    assert Reason.UPSTREAM_TIMEOUT.message == "The engine did not answer in time."


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_every_row_is_given_somewhere(row: Row) -> None:
    names = [f"{type(row).__name__}.{row.name}"]
    if isinstance(row, EndpointState):
        names.append(f"Presence.{row.name}")  # a probe finds it
    assert any(re.search(rf"\b{name}\b", text) for name in names for text in MODULES.values())


def test_no_other_file_has_a_sentence_for_a_code() -> None:
    """A table from codes to prose, or a sentence of the catalogue written again."""
    enums, sentences = (
        {"Cause", "Reason", "Failure", "EndpointState"},
        {row.sentence for row in ROWS if " " in row.sentence},
    )
    for path, text in MODULES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value.strip(". ").lower() not in sentences, f"{path}:{node.lineno}"
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    is_code = isinstance(key, ast.Attribute) and ast.unparse(key.value) in enums
                    prose = isinstance(value, ast.JoinedStr) or (
                        isinstance(value, ast.Constant) and " " in str(value.value)
                    )
                    assert not (is_code and prose), f"{path}:{node.lineno}"
    for path, text in SCRIPTS.items():
        for cause in Cause:
            assert not re.search(rf"\b{cause}\"?: \"", text), f"{path} has words for {cause}"


def test_the_page_reads_the_catalogue() -> None:
    served = Pages()._files["/admin/catalogue.js"][0].decode()
    for cause in Cause:
        assert f'"{cause}":"{cause.sentence}"' in served
    for state in EndpointState:
        assert f'"{state}":"{state.tone}"' in served


@pytest.mark.parametrize("page", ["states.md", "live-page.md", "behaviour.md"])
def test_the_docs_are_made_of_the_catalogue(page: str) -> None:
    assert (codes.DOCS / page).read_text() == codes.made()[page], "run `make generated`"
