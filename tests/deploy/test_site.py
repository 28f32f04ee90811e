"""Beside real gateways: the chart's two scripts, and the dashboard with a real Prometheus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.deploy.programs import CHART, said
from tests.deploy.site import Site, until
from tests.ports import free_port

RATE = "15s"


def queries() -> list[tuple[str, str]]:
    """The dashboard's, with all gateways and a window for its variables."""
    board = json.loads(Path("deploy/grafana/dashboards/penstock.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", RATE))
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def test_every_query_of_the_dashboard_has_data_after_a_scrape_of_a_loaded_gateway(site: Site) -> None:
    """Loaded with all that it shows: streams, refusals, time-outs, requeues, hang-ups, an engine that is down."""
    engines = [site.engine("--slots", "2", "--step-ms", "20") for _ in range(3)]
    settings = {
        "endpoints": [{"url": engine.url, "slots": 2} for engine in engines],
        "queue": {"max_requests": 12, "max_wait": "1s"},
        "health": {"eject_after": 1000},
    }
    gateway = site.gateway(settings)
    prometheus = site.prometheus({"gate": gateway})
    site.caller(gateway, 16, 0.01, stream=True)
    site.caller(gateway, 2, 0.2, stream=True, max_tokens=30)
    site.caller(gateway, 2, 0.1, patience_s=0.1)
    until(lambda: prometheus.query("penstock_requests_total"), "it is scraped")
    engines[0].fault("busy", count=200)
    engines[1].end()
    (site.folder / "gateway.yaml").write_text("queue: {max_wait: never}\n")
    gateway.send(signal.SIGHUP)
    empty = queries()
    end_s = time.monotonic() + 60.0
    while empty and time.monotonic() < end_s:
        time.sleep(1.0)
        empty = [(title, query) for title, query in empty if not prometheus.query(query)]
    assert not empty


def test_the_second_container_reloads_changed_settings(site: Site, tmp_path: Path) -> None:
    """As Kubernetes changes a mounted ConfigMap: files in a folder, a link to it, turned in one step."""
    engine = site.engine()
    mounted = site.folder / "mounted"
    mounted.mkdir()

    def put(version: str, text: str) -> None:
        (mounted / version).mkdir()
        (mounted / version / "penstock.yaml").write_text(text)
        (mounted / "..new").symlink_to(version)
        (mounted / "..new").replace(mounted / "..data")

    put("..1", f"endpoints: [{{url: '{engine.url}'}}]\n")
    (site.folder / "gateway.yaml").symlink_to(mounted / "..data" / "penstock.yaml")
    port = free_port()
    launcher = tmp_path / "penstock"
    launcher.write_text("import sys\nfrom penstock.cli.main import main\nsys.exit(main())\n")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, str(launcher), "serve", "-c", str(site.folder / "gateway.yaml")]
    log = (tmp_path / "log").open("w+")
    with (
        log,
        subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"], env=environment, stderr=log) as gateway,
        subprocess.Popen(
            [sys.executable, CHART / "files/reload.py", mounted],
            env={**os.environ, "EVERY_S": "0.1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as beside,
    ):
        try:
            until(lambda: "listening" in Path(log.name).read_text(), "it listens")
            assert beside.poll() is None
            put("..2", f"endpoints: [{{url: '{engine.url}', slots: 7}}]\n")
            assert beside.stdout is not None
            assert str(gateway.pid) in beside.stdout.readline()
            until(lambda: "slots" in Path(log.name).read_text(), "the gateway follows")
        finally:
            beside.terminate()
            assert beside.wait(10.0) == 0
            gateway.kill()


def test_helm_test_reports_whether_the_gateway_answers(site: Site) -> None:
    engine = site.engine()
    gateway = site.gateway({"endpoints": [{"url": engine.url}]})
    script = (CHART / "files/answers.py").read_text()
    until(lambda: b"default" in gateway.ask("/v1/models")[1], "the engine is known")
    done = said(sys.executable, "-c", script, gateway.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "/v1/models names ['default']"
    gateway.end()
    done = said(sys.executable, "-c", script, gateway.url)
    assert done.returncode == 1
    assert "/livez: " in done.stderr


def test_helm_test_takes_a_gateway_that_wants_keys_for_one_that_answers(site: Site) -> None:
    key = "sha256:" + "0" * 64
    gateway = site.gateway(
        {
            "endpoints": [{"url": "http://127.0.0.1:9"}],
            "identity": {"require_key": True},
            "tenants": [{"name": "team-a", "keys": [key]}],
        }
    )
    done = said(sys.executable, "-c", (CHART / "files/answers.py").read_text(), gateway.url)
    assert done.returncode == 0, done.stderr
    assert "asks for a key" in done.stdout
