"""Typical mistakes of a first day, on the command line and in the settings, and the line that is printed for each."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from penstock.config.layers import Flags
from penstock.config.load import load
from tests.cli.test_main import asked

ON_THE_COMMAND_LINE = {
    # other programs' words
    "start --endpoint http://a": "there is no command start: did you mean `penstock serve --endpoint http://a`?",
    "validate x.yaml": "there is no command validate: did you mean `penstock check x.yaml`?",
    "endpoints list": "there is no command endpoints: did you mean `penstock endpoint list`?",
    "restart": "did you mean `penstock reload`? (it reads the settings again without losing a request)",
    "stop": "did you mean `penstock drain`? (it refuses new requests and serves queued ones; SIGTERM or Ctrl-C",
    "logs": "the log is what `penstock serve` writes to stderr",
    # misspelt
    "servr": "there is no command servr: did you mean `penstock serve`?",
    "toop --once": "did you mean `penstock top --once`?",
    "endpoint lst": "penstock endpoint: there is no `lst`: did you mean `penstock endpoint list`?",
    "keys create team-a": "penstock keys: there is no `create`: did you mean `penstock keys new`?",
    "endpoint rm gpu-0:8000": "penstock endpoint: there is no `rm`: did you mean `penstock endpoint remove`?",
    "tenant nightly": "there is no `nightly`: expected ls, show, pause, resume, limit, weigh, cancel",
    "serve --endpont http://a": "penstock serve: unknown flag `--endpont`: did you mean `penstock serve --endpoint http://a`?",
    "serve --log-level verbose": "`verbose`: expected debug, info, warning, error",
    # no command, or no flag
    "--port 9000": "a command comes first: did you mean `penstock serve --port 9000`?",
    "penstock.yaml": "a command comes first: did you mean `penstock serve penstock.yaml`?",
    "http://gpu-0:8000": "a command comes first: did you mean `penstock serve --endpoint http://gpu-0:8000`?",
    "serve http://gpu-0:8000": "did you mean `penstock serve --endpoint http://gpu-0:8000`?",
    "doctor http://gpu-0:8000": "did you mean `penstock doctor --endpoint http://gpu-0:8000`?",
    "check -c penstock.yaml": "unknown flag `-c`: did you mean `penstock check penstock.yaml`?",
    "doctor penstock.yaml": "did you mean `penstock doctor -c penstock.yaml`?",
    "status http://gpu-0:8080": "did you mean `penstock status --url http://gpu-0:8080`?",
    "serve a.yaml -c b.yaml": "two settings files are given, a.yaml and b.yaml: one is allowed",
    "check": "penstock check: the following arguments are required: FILE",
    "try sim --tenant chat": "penstock try: `--tenant` is given without a flag: `penstock try TENANT MODEL`",
    "tenant weigh --name chat 3": "`--name` is given without a flag: `penstock tenant weigh NAME N`",
    "tenant pause --tenant chat": "`--tenant` is given without a flag: `penstock tenant pause NAME`",
    "keys revoke --key ci": "`--key` is given without a flag: `penstock keys revoke NAME`",
    "usage --tokn x": "did you mean `penstock usage --token x`?",
    "status --tenant chat": "penstock status: unknown flag `--tenant`\n",
    # other programs' flags
    "serve --max-num-seqs 64": "unknown flag `--max-num-seqs`: did you mean `--slots N`?",
    "serve --rpm 60": "it is `tenants[].limits` in the settings, or `penstock tenant limit NAME --requests-per-m",
    "serve --timeout 60": "it is `queue.max_wait` in the settings, or PENSTOCK__QUEUE__MAX_WAIT=60s",
    "serve --api-key sk-1": "it is `penstock keys new TENANT` for callers, `endpoints[].api_key` for engines",
    "serve --routing-strategy x": "did you mean `--routing NAME`?",
    "serve -v": "unknown flag `-v`: did you mean `--log-level debug`?",
    "serve --redis a:6379": "it is `share` in the settings (docs/scale.md)",
    "serve --port 99999": "listen: `127.0.0.1:99999`",
    "status --url 127.0.0.1:8080": "127.0.0.1:8080/admin/state is not a URL with http://, https:// or unix:/path (did "
    "you mean `http://127.0.0.1:8080`?)",
    "batch ls --url gate:80": "is not a URL with http://, https:// or unix:/path (did you mean `http://gate:80`?)",
}
IN_THE_SETTINGS = {
    # YAML
    "endpoints:\n\t- url: http://a": "in line 2: a tab indents it; YAML takes spaces only",
    "endpoints:\n  - url: http://a\n   slots: 4": "in line 3: its indentation matches no line above",
    "queue:\n  max_wait: 9s\n max_requests: 5": "in line 3: its indentation matches no line above",
    "tenants: [{name: a\nlisten: :80": "a `[` or `{`, begun in line 1, is not closed, or a comma is missing",
    "tenants:\n  - name: a: b": "in line 2: a second `: ` in a line, or an indentation too deep",
    'listen: "127.0.0.1': "a quote, begun in line 1, is not closed",
    "listen: *:8080": "`*` or `&` at the start of a value means an alias; put the value in quotes",
    "endpoints: [{url: http://a}]\nendpoints: []": "endpoints: is given twice, in line 1 and in line 2",
    # shapes
    "endpoints: {url: http://a}": "endpoints: expected a list, found a mapping (begin each item with `- `)",
    "endpoints: [http://a]": "expected a mapping (`key: value`), found `http://a` (begin it with `url: `)",
    "endpoints: [url:http://a]": "(a space belongs after the colon: `url: …`)",
    "endpoints: [{url: http://a/v1}]": "Penstock appends the whole path, `/v1` included (write `http://a`)",
    "endpoints: [{url: 'a:1'}]": "`a:1` is not a URL with a host (write `http://a:1`)",
    "routing: round_robin": "(write `routing: {policy: round_robin}`)",
    "queue: [max_wait: 9s]": "queue: expected a mapping (`key: value`), found a list (leave out the `- `)",
    "tenants: [{name: a, limits: [running: 4]}]": "tenants[0].limits: expected a mapping (`key: value`), found a list",
    "tenants: {chat: {weight: 3}}": "found a mapping (begin each item with `- `, as `- name: chat`)",
    "tenants: [chat, nightly]": "found `nightly` (begin it with `name: `)",
    "paths: [/v1/my]": "paths[0]: expected a mapping (`key: value`), found `/v1/my` (begin it with `path: `)",
    "models: {gpt-4: llama}": "expected a mapping (`key: value`), found `llama` (write `gpt-4: {to: llama}`)",
    "sessions: off": "sessions: expected a mapping (`key: value`), found `off` (write `sessions: {memory: off}`)",
    "batch: true": "batch: expected a mapping (`key: value`), found `true` (write `batch: {serve: true}`)",
    "queue:\n  max_wait = 20s": "found `max_wait = 20s` (write `max_wait: …`)",
    "queue.max_wait: 20s": "unknown setting (write `queue:` and, indented below it, `max_wait:`)",
    "listen: ':80'\n---\nqueue: {}": "in line 2: a second document begins (`---`); the settings are one",
    'store: {data: "C:\\data"}': "in line 1: in double quotes a `\\` begins an escape; put the value in single quotes",
    "queue: {max_wait: “20s”}": "queue.max_wait: typographic quotes belong to the value (write straight ones, or none)",
    # two of a kind
    "tenants: [{name: a}, {name: a}]": "tenants[1].name: is the same as that of tenants[0]",
    "endpoints: [{url: 'http://a:1'}, {url: 'http://A:1/'}]": "endpoints[1].url: is the same as that of endpoints[0]",
    "endpoints: [{url: 'http://localhost:1'}, {url: 'http://127.0.0.1:1'}]": "url: is the same as that of endpoints[0]",
    "endpoints: [{url: 'http://a:1'}, {url: 'https://a:1'}]": "endpoints[1].url: is the same as that of endpoints[0]",
    # variables
    "endpoints: [{url: http://a, api_key: '${UNSET_KEY}'}]": "api_key: the environment variable UNSET_KEY is not set",
    "admin: {token: '${EMPTY_KEY}'}": "token: the environment variable EMPTY_KEY is empty (set it",
    "endpoints: [{url: http://a, api_key: $ENGINE_KEY}]": "(write ${ENGINE_KEY}, or $$ENGINE_KEY for the text)",
    "endpoints: [{url: http://a, api_key: os.environ/KEY}]": "is text here, no variable (write ${KEY}",
    "endpoints: [{url: http://$GPU:8000}]": "(write `${NAME}` for a variable of the environment)",
    # addresses and files
    "endpoints: [{url: 'http:/a:1'}]": "`http:/a:1` is not a URL with a host (write `http://a:1`)",
    "endpoints: [{url: 'https//a:1'}]": "`https//a:1` is not a URL with a host (write `https://a:1`)",
    "endpoints: [{url: http://a/v1/chat/completions}]": "Penstock appends the whole path, `/v1` included (write `http://a`)",
    "endpoints: [{url: http://a/x/metrics}]": "Penstock appends the whole path, `/v1` included (write `http://a/x`)",
    "endpoints: [{url: https://a, tls: {ca_file: /a.pem}}]": "tls.ca_file: unknown setting (did you mean `ca`?)",
    "tls: {certificate: a.pem}": "tls.certificate: unknown setting (did you mean `cert`?)",
    "tls: {cert: /no/a.pem, key: /no/a.key}": "tls.key: cannot read `/no/a.key`: no such file or directory",
    "store: mysql://u:p@h/db": "is a URL: expected the path of a file or folder",
    "paths: [{path: 'http://a/v1/my'}]": "it does not begin with a slash (write `/v1/my`)",
    # other programs' words
    "port: 8080": "port: unknown setting (write `listen: 127.0.0.1:PORT`)",
    "host: 0.0.0.0": "host: unknown setting (write `listen: HOST:8080`)",
    "timeout: 60": "(write `queue.max_wait` for the queue, `timeouts` for engines)",
    "endpoints: [{url: http://a, max_num_seqs: 64}]": "vLLM's name, it seems: here it is `endpoints[].slots`",
    "routing: {policy: least-busy}": "or load_balanced_kv (here it is `least_loaded`)",
    "routing: {policy: leastconn}": "or load_balanced_kv (here it is `least_loaded`)",
    "routing: {policy: power_of_two}": "or load_balanced_kv (here it is `least_loaded`)",
    "routing: {policy: lmetric}": "or load_balanced_kv (here it is `predicted_ttft`)",
    "share: {budgets: {valkey: {url: valkey://a}}}": "a group has one budget per tenant",
    "redis: {host: a}": "here it is `share.elect.valkey.url`",
    "tenants: [{name: a, max_budget: 5}]": "LiteLLM's name, it seems: here it is `tenants[].limits.tokens_per_day`",
    "tenants: [{name: a, rpm: 60}]": "here it is `tenants[].limits.requests_per_minute`",
    "tenants: [{name: a, keys: [sk-1]}]": "is not a key's hash: expected `sha256:` and 64 hexadecimal digits",
    # units
    "admission: {max_kv_usage: 95}": "`95`: expected at most 1 (a share, not a percentage: `0.95`)",
    "admission: {max_kv_usage: 95%}": "`95%` is not a number (write `0.95`)",
    "{listen: ':8080', endpoints: [{url: 'http://localhost:8080'}]}": "is this gateway's own address (`listen`)",
    "{listen: '10.0.0.7:80', endpoints: [{url: 'http://10.0.0.7'}]}": "is this gateway's own address (`listen`)",
    "admission: {reserved_slots: 10%}": "a share of at least 0 and less than 1 (write `0.1`)",
    "tenants: [{name: a, weight: 0}]": "tenants[0].weight: `0`: expected more than 0",
    "tenants: [{name: a, weight: -1}]": "tenants[0].weight: `-1`: expected more than 0",
    "tenants: [{name: a, limits: {tokens_per_day: 10k}}]": "`10k` is not a whole number (write `10000`)",
    "tenants: [{name: a, limits: {tokens_per_day: '1,500,000'}}]": "is not a whole number (write `1500000`)",
    "endpoints: [{url: http://a, slots: 1_024}]": "`auto` or a whole number of 1 or more (write `1024`)",
    "queue: {max_wait: 1 minute}": "is not a duration (write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d)",
    "queue: {max_bytes: 2 gigs}": "is not a size (write bytes, or a unit: 64KB, 64KiB, 10MB, 1GiB)",
}


@pytest.mark.parametrize("line", ON_THE_COMMAND_LINE)
def test_a_mistake_on_the_command_line_is_answered_with_the_right_line(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    code, out, err = asked(capsys, *shlex.split(line))
    assert (code != 0, out) == (True, "")
    assert ON_THE_COMMAND_LINE[line] in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("text", IN_THE_SETTINGS)
def test_a_mistake_in_the_settings_is_answered_with_what_to_write(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("EMPTY_KEY", "")
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    code, out, err = asked(capsys, "check", str(file))
    assert (code, out) == (1, "")
    assert IN_THE_SETTINGS[text] in err


def test_a_tenants_rate_has_its_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "tenant", "limit", "a", "--rpm", "60", "--tpm", "1000", "--url", "http://127.0.0.1:9")[2]
    assert said.startswith("penstock: cannot reach http://127.0.0.1:9")


def test_host_and_port_change_their_part_of_the_address(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("listen: 10.0.0.1:9000")

    def listen(path: str | None, **flags: str) -> str:
        return load(path, {}, Flags(**flags)).listen  # type: ignore[arg-type]

    assert listen(None, port="9001") == "127.0.0.1:9001"
    assert listen(None, host="0.0.0.0", port="9001") == "0.0.0.0:9001"
    assert listen(str(file), port="9001") == "10.0.0.1:9001"
    assert listen(str(file), host="::1") == "[::1]:9000"
