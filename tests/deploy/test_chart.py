"""The chart, by real Helm over a matrix of values: it lints and renders what a cluster and the gateway take, and values
that cannot be are refused in words."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from penstock.config.load import from_mapping, load
from tests.deploy.conftest import Helm, Object
from tests.deploy.kinds import SPECS
from tests.deploy.programs import CHART, program, ran, said
from tests.deploy.values import CONTRADICTIONS, GOOD, MISTAKES

ENVIRONMENT = {
    "PENSTOCK_ADMIN_TOKEN": "a-token-of-sixteen-or-more",
    "PENSTOCK_READ_TOKEN": "another-token-to-look",
    "PENSTOCK_SHARE_SECRET": "a-secret-between-gateways",
    "TEAM_A_KEY": "sha256:" + "0" * 64,
    "DATABASE_URL": "postgresql://gate:gate@db/gate",
    "STORE_PASSWORD": "a-password",
    "POD_IP": "10.0.0.7",
    "POD_NAME": "gate-7d9f-abcde",
    "NODE_NAME": "node-1",
}
SHARING = {  # those that share, and by which Lease
    "shared": "gate",
    "shared, by certificates": "other",
    "shared, elected by a store": None,
}


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [made for made in objects if made["kind"] == kind]


def one(objects: list[Object], kind: str) -> Object:
    (made,) = of_kind(objects, kind)
    return made


def pod_specs(objects: list[Object]) -> Iterator[Object]:
    for made in objects:
        if made["kind"] == "Pod":
            yield made["spec"]
        elif made["kind"] == "Deployment":
            yield made["spec"]["template"]["spec"]


def container(objects: list[Object]) -> Object:
    found: Object = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def settings_file(objects: list[Object]) -> str:
    files = [made["data"]["penstock.yaml"] for made in of_kind(objects, "ConfigMap") if "penstock.yaml" in made["data"]]
    text: str = files[0]
    return text


def certificate(folder: Path) -> None:
    words = shlex.split("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=gate")
    ran(
        program("openssl", "Debian's package openssl"),
        *words,
        "-out",
        folder / "tls.crt",
        "-keyout",
        folder / "tls.key",
    )
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def test_the_chart_lints_without_a_warning(helm: Helm) -> None:
    done = said(helm.command, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    assert "ERROR" not in done.stdout


def test_rendered_objects_are_valid_for_a_cluster(helm: Helm, tmp_path: Path) -> None:
    """Kubernetes' own kinds strictly by their schemas, others by what their definitions know."""
    validate = program("kubernetes-validate")
    ours: dict[str, str] = {}  # each object once: most are the same whatever the values
    for name, values in GOOD.items():
        assert helm.said("lint", values)[0], name
        for made in helm.objects(values):
            if spec := SPECS.get((made["apiVersion"], made["kind"])):
                jsonschema.validate(made["spec"], spec)
            else:
                ours.setdefault(yaml.safe_dump(made), name)
    files = []
    for number, (text, name) in enumerate(ours.items()):
        files.append(tmp_path / f"{number}-{name.replace(' ', '-')}.yaml")
        files[-1].write_text(text)
    ran(validate, "--strict", "--quiet", "-k", "1.37", *files)


@pytest.mark.parametrize("name", GOOD)
def test_its_names_labels_and_selectors_fit_each_other(helm: Helm, name: str) -> None:
    objects = helm.objects(GOOD[name])
    placed = [(made["kind"], made["metadata"]["name"]) for made in objects]
    assert len(placed) == len(set(placed))
    deployment = one(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    services = of_kind(objects, "Service")
    assert all(service["spec"]["selector"].items() <= labels for service in services)
    for kind, key in (
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("PodMonitor", "selector"),
    ):
        for made in of_kind(objects, kind):
            assert made["spec"][key]["matchLabels"].items() <= labels
    for made in of_kind(objects, "ServiceMonitor"):
        wanted, scraped = made["spec"]["selector"]["matchLabels"].items(), made["spec"]["endpoints"][0]["port"]
        found = [service for service in services if wanted <= service["metadata"]["labels"].items()]
        assert [port for service in found for port in service["spec"]["ports"] if port["name"] == scraped]
    spec = deployment["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    ports = {port["name"] for port in container(objects)["ports"]}
    assert {mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", [])} <= volumes
    assert {port["targetPort"] for service in services for port in service["spec"]["ports"]} <= ports
    for made in objects:
        if made["metadata"]["name"] != "more":
            assert made["metadata"]["namespace"] == "llm"


@pytest.mark.parametrize("name", GOOD)
def test_every_pod_meets_the_level_restricted(helm: Helm, name: str) -> None:
    for spec in pod_specs(helm.objects(GOOD[name])):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
        for each in spec["containers"]:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not any("hostPort" in port for port in each.get("ports", []))


@pytest.mark.parametrize("name", GOOD)
def test_the_gateway_takes_the_settings_that_it_renders(helm: Helm, tmp_path: Path, name: str) -> None:
    values = GOOD[name]
    objects = helm.objects(values)
    certificate(tmp_path)
    file = tmp_path / "penstock.yaml"
    file.write_text(settings_file(objects).replace("/etc/penstock-tls", str(tmp_path)))
    given = {entry["name"]: entry["value"] for entry in container(objects)["env"] if "value" in entry}
    settings = load(str(file), {**ENVIRONMENT, **given})
    assert settings.endpoints or settings.discovery
    assert (
        settings.queue.stop_timeout
        < one(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    )
    # What the settings ask the environment for is there, or comes from the Secrets that are named.
    named = {entry["name"] for entry in container(objects)["env"]} | {"TEAM_A_KEY", "DATABASE_URL", "STORE_PASSWORD"}
    assert {name for name in ENVIRONMENT if f"${{{name}}}" in file.read_text()} <= named


@pytest.mark.parametrize(
    ("batch", "rendered"),
    [({}, {"serve": True}), ({"keep": "7d"}, {"serve": True, "keep": "7d"}), ({"serve": False}, {"serve": False})],
)
def test_a_volume_is_the_stores_folder(helm: Helm, batch: dict[str, Any], rendered: dict[str, Any]) -> None:
    objects = helm.objects({"persistence": {"enabled": True}, "settings": {"batch": batch}})
    written = yaml.safe_load(settings_file(objects))
    assert (written["store"], written["batch"]) == ({"data": "/var/lib/penstock/batch"}, rendered)
    assert "/var/lib/penstock" in {mount["mountPath"] for mount in container(objects)["volumeMounts"]}


@pytest.mark.parametrize(("name", "lease"), SHARING.items())
def test_gateways_that_share_elect_one_and_reach_each_other(helm: Helm, name: str, lease: str | None) -> None:
    values = GOOD[name]
    objects = helm.objects({**values, "rbac": True, "networkPolicy": {"enabled": True, "to": [{"podSelector": {}}]}})
    rendered = yaml.safe_load(settings_file(objects))["share"]
    assert rendered["elect"] == ({"kubernetes": {"lease": lease}} if lease else values["settings"]["share"]["elect"])
    env = {entry["name"]: entry for entry in container(objects)["env"]}
    assert env["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    if "share" in values["existingSecrets"]:
        key = env["PENSTOCK_SHARE_SECRET"]["valueFrom"]["secretKeyRef"]
        assert key == {"name": "gate-share", "key": "secret"}
        assert rendered["name"] == "${POD_NAME}"
    else:
        assert "secret" not in rendered
        assert rendered["name"] == "${NODE_NAME}", "what is written stands"
    leases = [rule for rule in one(objects, "Role")["rules"] if rule["resources"] == ["leases"]]
    assert {verb for rule in leases for verb in rule["verbs"]} == (
        {"get", "create", "update", "patch"} if lease else set()
    )
    assert {named for rule in leases for named in rule.get("resourceNames", [])} == ({lease} if lease else set())
    port = values["share"].get("port", 8081)
    policy = one(objects, "NetworkPolicy")["spec"]
    assert any(each["port"] == port for rule in policy["ingress"] for each in rule["ports"])
    assert any(each["port"] == port for rule in policy["egress"] for each in rule.get("ports", []))


@pytest.mark.parametrize(("name", "lease"), SHARING.items())
def test_a_pod_gets_a_token_if_it_may_hold_a_lease(helm: Helm, name: str, lease: str | None) -> None:
    spec = one(helm.objects({**GOOD[name], "rbac": False}), "Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is (lease is not None)


@pytest.mark.parametrize(("address", "place"), [("10.0.0.7", "10.0.0.7:8081"), ("fd00::7", "[fd00::7]:8081")])
def test_a_pod_advertises_its_ipv4_or_ipv6_address(helm: Helm, tmp_path: Path, address: str, place: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(settings_file(helm.objects(GOOD["shared"])))
    share = load(str(file), {**ENVIRONMENT, "POD_IP": address}).share
    assert (share.place, share.called) == (place, "gate-7d9f-abcde")


@pytest.mark.parametrize("name", ["a pool", "a pool of the settings"])
def test_with_a_pool_its_role_allows_to_watch_the_pools_objects(helm: Helm, name: str) -> None:
    objects = helm.objects(GOOD[name])
    (source,) = yaml.safe_load(settings_file(objects))["discovery"]
    assert source["kubernetes"]["pool"] == "qwen"
    allowed = {
        (group, resource): rule["verbs"]
        for rule in one(objects, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    watches = ["list", "watch"]
    assert allowed["inference.networking.k8s.io", "inferencepools"] == watches
    for group in ("llm-d.ai", "inference.networking.x-k8s.io"):
        assert allowed[group, "inferenceobjectives"] == allowed[group, "inferencemodelrewrites"] == watches
    assert allowed["inference.networking.x-k8s.io", "inferencepoolimports"] == ["get"]


def test_the_pickers_service_is_the_one_that_the_pool_beside_it_names(helm: Helm) -> None:
    objects = helm.objects({**GOOD["a picker"], "fullnameOverride": "penstock"})
    service = next(made for made in of_kind(objects, "Service") if made["metadata"]["name"].endswith("-epp"))
    pools = yaml.safe_load_all(Path("deploy/gateways/pool.yaml").read_text())
    named = next(made for made in pools if made["kind"] == "InferencePool")["spec"]["endpointPickerRef"]
    (port,) = service["spec"]["ports"]
    assert (service["metadata"]["name"], port["port"]) == (named["name"], named["port"]["number"])
    ports = {each["name"]: each["containerPort"] for each in container(objects)["ports"]}
    assert ports[port["targetPort"]] == 9002
    assert yaml.safe_load(settings_file(objects))["epp"] == {"listen": "[::]:9002"}


@pytest.mark.parametrize("whole", [True, False])
def test_only_the_gateways_proxies_reach_the_pickers_port(helm: Helm, whole: bool) -> None:
    proxies = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy-gateway-system"}}}]
    values = {**GOOD["a picker"], "networkPolicy": {"enabled": whole}}
    for given, expected in (([], [{"podSelector": {}}]), (proxies, proxies)):
        objects = helm.objects({**values, "epp": {"enabled": True, "from": given}})
        ingress = one(objects, "NetworkPolicy")["spec"]["ingress"]
        by_port = {each["port"]: rule.get("from") for rule in ingress for each in rule["ports"]}
        assert by_port[9002] == expected
        assert (by_port[8080] is None) == (not whole), "the other ports are as open as without a picker"


def test_without_sharing_its_role_allows_discovery_only(helm: Helm) -> None:
    page = re.findall(r"```yaml\n(.*?)```", Path("docs/discovery.md").read_text(), re.DOTALL)
    (said_there,) = [yaml.safe_load(block)["rules"] for block in page if "kind: Role" in block]
    assert one(helm.objects({}), "Role")["rules"] == said_there


def test_only_a_change_of_settings_replaces_the_pods(helm: Helm) -> None:
    def template(values: dict[str, Any]) -> Object:
        made: Object = one(helm.objects(values), "Deployment")["spec"]["template"]
        return made

    changed = {"settings": {"queue": {"max_wait": "20s"}}}
    assert template({}) != template(changed)
    assert template({}) == template({"ingress": {"enabled": True, "hosts": ["a"]}})
    for how in ("reload", "nothing"):
        assert template({"onSettingsChange": how}) == template({"onSettingsChange": how, **changed})


def test_alerts_and_dashboard_come_with_the_chart_as_they_are(helm: Helm) -> None:
    objects = helm.objects({"metrics": {"rules": True, "dashboard": True}})
    assert one(objects, "PrometheusRule")["spec"] == yaml.safe_load(Path("deploy/prometheus/alerts.yml").read_text())
    (shown,) = [made for made in of_kind(objects, "ConfigMap") if "penstock.json" in made["data"]]
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(shown["data"]["penstock.json"]) == json.loads(
        Path("deploy/grafana/dashboards/penstock.json").read_text()
    )


def test_the_alert_of_a_gateway_that_is_down_asks_for_the_job_that_the_monitor_names(helm: Helm) -> None:
    objects = helm.objects({"nameOverride": "queue", "metrics": {"rules": True, "serviceMonitor": True}})
    (down,) = [
        rule for rule in one(objects, "PrometheusRule")["spec"]["groups"][0]["rules"] if rule["alert"] == "PenstockDown"
    ]
    label = one(objects, "ServiceMonitor")["spec"]["jobLabel"]
    assert down["expr"] == f'up{{job="{one(objects, "Service")["metadata"]["labels"][label]}"}} == 0'


def test_engines_are_scaled_to_the_number_that_the_gateway_wants(helm: Helm) -> None:
    """KEDA divides the value by `targetValue`, and asks where the Service is."""
    (to_zero, other) = of_kind(helm.objects(GOOD["keda"]), "ScaledObject")
    assert to_zero["spec"]["minReplicaCount"] == 0
    assert other["spec"]["minReplicaCount"] == 1
    (trigger,) = to_zero["spec"]["triggers"]
    assert trigger["metadata"] == {
        "url": "http://gate.llm.svc:80/autoscale/Qwen%2FQwen3-32B",
        "valueLocation": "endpoints_wanted",
        "targetValue": "1",
        "activationTargetValue": "0",
    }
    (trigger,) = one(helm.objects(GOOD["keda by prometheus"]), "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["query"] == 'max(penstock_endpoints_wanted{model="Qwen/Qwen3-32B"})'


def test_a_port_for_operators_stays_inside_and_all_that_is_theirs_goes_there(helm: Helm) -> None:
    objects = helm.objects(GOOD["a port for operators"])
    callers, admin = of_kind(objects, "Service")
    assert [port["port"] for port in callers["spec"]["ports"]] == [80]
    assert (admin["metadata"]["name"], admin["spec"]["type"]) == ("gate-admin", "ClusterIP")
    assert yaml.safe_load(settings_file(objects))["admin"] == {"listen": ":9090", "token": "${PENSTOCK_ADMIN_TOKEN}"}
    env = {entry["name"]: entry.get("value") for entry in container(objects)["env"]}
    assert env["PENSTOCK_URL"] == "http://127.0.0.1:9090", "commands in the pod go there"
    assert one(objects, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "admin"
    (trigger,) = one(objects, "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["url"].startswith("http://gate-admin.llm.svc:9090/autoscale/")
    rules = {rule["ports"][0]["port"]: str(rule["from"]) for rule in one(objects, "NetworkPolicy")["spec"]["ingress"]}
    assert "monitoring" in rules[9090]
    assert "monitoring" not in rules[8080]
    assert "ingress-nginx" in rules[8080]
    assert "ingress-nginx" not in rules[9090]
    scraped = helm.objects(GOOD["a port for operators, scraped by annotations"])
    annotations = one(scraped, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9090"


@pytest.mark.parametrize(("values", "words"), CONTRADICTIONS, ids=[words for _, words in CONTRADICTIONS])
def test_values_that_contradict_each_other_are_refused_in_words(helm: Helm, values: dict[str, Any], words: str) -> None:
    assert words in helm.refused(values)


@pytest.mark.parametrize(("values", "where"), MISTAKES, ids=[where for _, where in MISTAKES])
def test_values_of_another_kind_are_refused_by_the_schema(helm: Helm, values: dict[str, Any], where: str) -> None:
    assert where in helm.refused(values)


def test_all_contradictions_are_reported_together(helm: Helm) -> None:
    text = helm.refused(
        {
            "replicas": 2,
            "persistence": {"enabled": True},
            "share": {"enabled": True},
            "ingress": {"enabled": True},
            "httpRoute": {"enabled": True},
            "terminationGracePeriodSeconds": 5,
        }
    )
    assert "6 of Penstock's values cannot be" in text
    assert text.count("\n  - ") == 6


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({}, ()),
        ({"replicas": 3}, ("3 gateways that share nothing",)),
        (GOOD["shared"], ()),
        (GOOD["ingress"], ("callers from outside need no key",)),
        (GOOD["much together"], ("2 gateways that share nothing",)),
        (
            {"ingress": {"enabled": True, "hosts": ["a"]}, "networkPolicy": {"enabled": True}},
            ("no key", "networkPolicy.from"),
        ),
    ],
)
def test_the_notes_give_the_address_and_warnings(helm: Helm, values: dict[str, Any], warned: tuple[str, ...]) -> None:
    good, text = helm.said("install", values, "--dry-run=client", "--namespace", "llm")
    assert good, text
    notes = text.partition("NOTES:")[2]
    assert "http://gate.llm.svc:80/v1" in notes or "https://gate.llm.svc:80/v1" in notes
    assert notes.count("WARNING") == len(warned)
    assert all(words in notes for words in warned)


def test_the_notes_name_every_secret_that_has_to_be_there(helm: Helm) -> None:
    _, text = helm.said("install", GOOD["much together"], "--dry-run=client")
    notes = text.partition("NOTES:")[2]
    assert all(f"Secret {name}" in notes for name in ("gate-admin", "gate", "gate-tls"))


def test_values_match_the_schema() -> None:
    ran("scripts/deploy/chart_values", "--check")
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def test_examples_of_the_page_render_and_its_refusal_is_real(helm: Helm) -> None:
    """Its examples render, and the refusal that it shows is the one that comes."""
    page = Path("docs/chart.md").read_text()
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert [list(example) for example in examples] == [["settings", "existingSecrets"], ["autoscaling"]]
    for example in examples:
        assert helm.objects(example)
    ((given, told),) = re.findall(r"\$ helm install gate deploy/helm/penstock --set (\S+)\n(.*?)```", page, re.DOTALL)
    done = said(helm.command, "template", "gate", CHART, "--set", given)
    assert told in done.stderr


def test_the_packaged_chart_knows_every_setting(helm: Helm, tmp_path: Path) -> None:
    """It has the settings' schema in that of its values: Helm refuses a setting that does not exist."""
    ran("scripts/deploy/chart", tmp_path, env={"PATH": f"{Path(helm.command).parent}:/usr/bin:/bin"})
    (package,) = tmp_path.glob("penstock-*.tgz")
    text = helm.refused(
        {"settings": {"queue": {"max_wiat": "20s", "max_requests": "many"}, "listen": ":8080"}}, chart=package
    )
    assert "'max_wiat' not allowed" in text
    assert "/settings/queue/max_requests" in text
    for name, values in GOOD.items():
        assert helm.text(values, chart=package), name
    made = list(yaml.safe_load_all(helm.text({"metrics": {"rules": True, "dashboard": True}}, chart=package)))
    assert one([each for each in made if each], "PrometheusRule")["spec"]["groups"]


def test_the_matrix_leaves_no_value_out() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    used = {name for values in GOOD.values() for name in values}
    assert schema.keys() - used == {"global", "containerPort", "podSecurityContext", "securityContext"}


def test_a_discovery_of_ones_own_is_left_as_it_is(helm: Helm) -> None:
    settings = from_mapping(yaml.safe_load(settings_file(helm.objects(GOOD["engines by name"]))))
    assert not settings.discovery
    assert len(settings.endpoints) == 2
