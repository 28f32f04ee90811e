"""`penstock batch`: what people and scripts see of batches, against a gateway of its own."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
from pathlib import Path

import pytest

from penstock.cli import batch_client
from penstock.cli.admin_client import GatewayError
from penstock.cli.batch_client import BatchClient
from penstock.cli.main import main
from tests.batch.test_batch import gateway, jsonl, line
from tests.gateway.conftest import World


async def run(world: World, *words: str) -> int:
    return await asyncio.to_thread(main, ["batch", words[0], "--url", world.url, *words[1:]])


async def test_a_file_goes_in_and_answers_come_out(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(*(line(f"r{n}") for n in range(5))))
    assert await run(world, "run", str(file), "--window", "10m") == 0
    answers = [json.loads(one) for one in (tmp_path / "in.jsonl.output.jsonl").read_text().splitlines()]
    assert sorted(one["custom_id"] for one in answers) == [f"r{n}" for n in range(5)]
    assert "5 answers in" in capsys.readouterr().err
    assert await run(world, "ls", "--json") == 0
    [batch] = json.loads(capsys.readouterr().out)
    assert (batch["status"], batch["completion_window"]) == ("completed", "10m")
    assert await run(world, "show", batch["id"]) == 0
    assert "completed, 5 done and 0 failed of 5" in capsys.readouterr().out
    assert await run(world, "ls") == 0
    assert batch["id"] in capsys.readouterr().out
    assert await run(world, "cancel", batch["id"]) == 1
    assert "is completed, so it can't be cancelled" in capsys.readouterr().err


async def test_a_bad_file_is_reported_line_by_line(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(line("a"), b"no json", line("a")))
    assert await run(world, "run", str(file)) == 3
    out = capsys.readouterr().out
    assert "line 2: This line is not parseable as valid JSON. (invalid_json_line)" in " ".join(out.split())
    assert "line 3: " in out
    assert await run(world, "run", str(tmp_path / "none")) == 1
    assert "No such file" in capsys.readouterr().err


async def test_without_batches_it_names_the_missing_setting(
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}])
    assert await run(world, "ls") == 1
    assert "files and batches are switched off here (the setting is `batch.serve: true`" in capsys.readouterr().err


class Broken(io.BytesIO):
    """An answer that has ten bytes by its head, and two."""

    headers = {"content-length": "10"}  # noqa: RUF012
    raises: Exception | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and self.raises is not None:
            raise self.raises
        return data


@pytest.mark.parametrize("raises", [None, http.client.IncompleteRead(b""), ConnectionResetError()])
def test_a_download_that_breaks_off_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: Exception | None
) -> None:
    answer = Broken(b"x\n")
    answer.raises = raises
    monkeypatch.setattr(batch_client, "reach", lambda *_, **__: answer)
    with pytest.raises((GatewayError, OSError)):
        BatchClient("http://gateway", key=None, tenant=None).download("file-1", tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []
