"""The image, started as a cluster would: another user, a root that is read only. `make image` builds it first."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.deploy.programs import missing, ran, said
from tests.deploy.site import until
from tests.ports import free_port

NAME = os.environ.get("IMAGE") or f"penstock:{penstock.__version__}"


class Image:
    """What is known of it, and how a program in it is run. Docker, or the tree that buildah has mounted."""

    def __init__(self, config: dict[str, Any], tree: Path | None) -> None:
        self.config = config
        self._tree = tree

    def begun(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """A program in it, as the image's user and in its environment, on this machine's network."""
        given = env or {}
        if self._tree is None:
            flags = [flag for name, value in given.items() for flag in ("--env", f"{name}={value}")]
            command = ["docker", "run", "--rm", "--read-only", "--network=host", *flags, "--entrypoint", words[0], NAME]
            return subprocess.Popen([*command, *words[1:]], text=True, **options)
        mounts = f"mount --bind {self._tree} /mnt && mount --bind /dev /mnt/dev && mount -t proc proc /mnt/proc"
        into = f"mount -o remount,ro,bind /mnt && exec chroot --userspec={self.config['User']} /mnt"
        command = ["unshare", "--mount", "sh", "-c", f'{mounts} && {into} "$@"', "sh", *words]
        environment = dict(entry.split("=", 1) for entry in self.config["Env"])
        return subprocess.Popen(command, env={**environment, **given}, text=True, **options)

    def ran(self, *words: str) -> str:
        with self.begun(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            text, _ = process.communicate(timeout=60.0)
            assert process.returncode == 0, text
            assert isinstance(text, str)
            return text


def of_this_revision(config: dict[str, Any]) -> None:
    """An image that was built some time ago says nothing of what stands here now."""
    built, here = config["Labels"]["org.opencontainers.image.revision"], said("git", "rev-parse", "HEAD").stdout.strip()
    if built != here:
        missing(f"{NAME} was built from {built[:12]}, and this is {here[:12]}: `make image` builds it again")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if shutil.which("docker") and said("docker", "info").returncode == 0:
        found = said("docker", "image", "inspect", NAME)
        if found.returncode:
            missing(f"no image {NAME} in docker: `make image` builds it")
        config = json.loads(found.stdout)[0]["Config"]
        of_this_revision(config)
        yield Image(config, None)
        return
    if not shutil.which("buildah"):
        missing("neither a docker engine nor buildah is here: nothing builds or starts an image")
    found = said("buildah", "inspect", "--type", "image", NAME)
    if found.returncode:
        missing(f"no image {NAME} in buildah: `make image` builds it")
    if os.geteuid():
        missing("buildah's images are looked into as root only")
    config = json.loads(found.stdout)["Docker"]["config"]
    of_this_revision(config)
    container = ran("buildah", "from", NAME).strip()
    try:
        yield Image(config, Path(ran("buildah", "mount", container).strip()))
    finally:
        ran("buildah", "rm", container)


def test_labels_user_and_version(image: Image) -> None:
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.version"] == penstock.__version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert re.fullmatch("[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == ["penstock"]
    assert image.ran("penstock", "--version") == f"penstock {penstock.__version__} (compiled)\n"


def test_its_bill_of_materials_has_all_that_is_pinned(image: Image) -> None:
    bill = json.loads(image.ran("cat", "/usr/share/penstock/sbom.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    there = {(part["name"].lower().replace("_", "-"), part["version"]) for part in bill["components"]}
    pinned = re.findall(r"^([a-z0-9_.-]+)==([^ ;]+)", Path("requirements.lock").read_text(), re.MULTILINE)
    assert {(name.lower().replace("_", "-"), version) for name, version in pinned} <= there


def test_it_has_the_extras_that_its_recipe_names(image: Image) -> None:
    recipe = re.search(r"^ARG EXTRAS=(.*)$", Path("deploy/Dockerfile").read_text(), re.MULTILINE)
    assert recipe is not None
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = os.environ.get("EXTRAS", recipe[1])
    wanted = [re.split(r"[\[>=]", each)[0] for extra in names.split(",") if extra for each in extras[extra]]
    ask = f"import importlib.metadata as m; print(*[name for name in {wanted!r} if not m.version(name)])"
    assert image.ran("python", "-c", ask) == "\n"
    told = image.ran("python", "-c", "import jwt, redis; from jwt.algorithms import has_crypto; print(has_crypto)")
    assert told == "True\n", "tokens of an issuer are signed, and a Valkey elects"


def test_it_has_no_compiler_and_no_pip_and_its_files_belong_to_root(image: Image) -> None:
    told = image.ran(
        "python", "-c", "import importlib.util as u; print([n for n in ('pip', 'mypy') if u.find_spec(n)])"
    )
    assert told == "[]\n"
    assert image.ran("find", "/penstock", "-user", "65532") == ""
    assert image.ran("python", "-c", "import os; print(bool(os.statvfs('/').f_flag & os.ST_RDONLY))") == "True\n"
    assert image.ran("find", "/penstock", "-perm", "-o+w", "-not", "-type", "l") == ""


def test_it_serves_from_a_read_only_root_and_reports_its_health(image: Image) -> None:
    port = free_port()
    health = image.config["Healthcheck"]["Test"]
    assert health[0] == "CMD"
    there = {"PENSTOCK__LISTEN": f"127.0.0.1:{port}", "PENSTOCK_URL": f"http://127.0.0.1:{port}"}

    def healthy() -> bool:
        with image.begun(*health[1:], env=there, stderr=subprocess.DEVNULL) as asking:
            return asking.wait(30.0) == 0

    assert not healthy()
    words = ("penstock", "serve", "--endpoint", "http://127.0.0.1:9")
    with image.begun(*words, env=there, stderr=subprocess.PIPE) as process:
        try:
            until(healthy, "its health is good")
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60.0)
    assert process.returncode == 0, log
    assert "Traceback" not in log
    assert f"listening on http://127.0.0.1:{port}" in log
