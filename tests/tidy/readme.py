"""Writes how Penstock is got into README.md, by pyproject.toml: `python -m tests.tidy.readme`.

`tool.penstock.published` puts the package index first; `project.urls.Repository` is what a fork changes. What plain
Python costs is `penstock.build.COSTS`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from penstock.build import COSTS

ROOT = Path(__file__).parents[2]
README, PYPROJECT = ROOT / "README.md", ROOT / "pyproject.toml"
CLONE = """\
```sh
git clone {address} && cd {folder}
make demo        # a minute with its set-up; ends by Ctrl-C, until then its page is http://127.0.0.1:8080/admin/
make test        # the fast tests: three minutes on two free cores, and one for their set-up
```
"""
NEEDS = "Linux, Python 3.11 or later with venv, make (`apt-get install git make python3-venv`):"
VENV = "python3 -m venv penstock-env && . penstock-env/bin/activate\n"
OTHERS = "[pipx, uv, systemd, an image](docs/operations.md#install)"
NOT_RUN = "<!-- not run: {} -->\n"


class Published(NamedTuple):
    """What pyproject.toml says of where Penstock is to be had."""

    published: bool  #: the package is in the index
    address: str  #: of the repository


def stated() -> Published:
    project = tomllib.loads(PYPROJECT.read_text())
    return Published(project["tool"]["penstock"]["published"], project["project"]["urls"]["Repository"])


def parts(where: Published) -> dict[str, str]:
    """The parts of README, by their names."""
    clone = CLONE.format(address=where.address, folder=where.address.rsplit("/", 1)[1])
    if not where.published:
        first = f"{NEEDS}\n\n{NOT_RUN.format('it is a checkout')}{clone}"
        install = f"pip install .    # seconds. Plain Python: {COSTS}; PENSTOCK_COMPILE=yes compiles, for minutes\n"
        second = f"In the checkout, or by {OTHERS}:\n\n{NOT_RUN.format('it is installed')}```sh\n{VENV}{install}```\n"
        return {"first": first, "install": second}
    install = "pip install penstock-gateway    # compiled, on Linux with glibc\npenstock demo\n"
    first = f"Linux, Python 3.11 or later with venv (`apt-get install python3-venv`), or by {OTHERS}:\n\n"
    first += f"{NOT_RUN.format('it is installed')}```sh\n{VENV}{install}```\n\n"
    first += (
        f"From the sources (`apt-get install git make python3-venv`):\n\n{NOT_RUN.format('it is a checkout')}{clone}"
    )
    return {"first": first, "install": "In that environment or checkout.\n"}


def written(text: str, where: Published) -> str:
    """Returns README with its made parts as they have to be."""
    for name, part in parts(where).items():
        begin, end = f"<!-- made: {name} -->\n", "<!-- made -->\n"
        found = re.search(f"{begin}.*?{end}", text, re.DOTALL)
        assert found is not None, name
        text = text[: found.start()] + begin + part + end + text[found.end() :]
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(), stated()))
