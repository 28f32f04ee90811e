"""An answer of the ledger as comma-separated values: a row per combination of the parts, amounts by their names."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any


def csv_text(told: Mapping[str, Any]) -> str:
    """Returns the rows of an answer (`report.py`) with a head; reasons are left out."""
    amounts = [name for name in told["total"] if name != "reasons"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*told["by"], *amounts])
    writer.writerows([[_cell(row[name]) for name in (*told["by"], *amounts)] for row in told["rows"]])
    return text.getvalue()


def _cell(value: object) -> object:
    """Returns a value that no spreadsheet takes for a formula, because clients choose names. No exponents."""
    if isinstance(value, float):
        text = f"{value:.6f}".rstrip("0")
        return f"{text}0" if text.endswith(".") else text
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
