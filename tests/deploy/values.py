"""A matrix of values: what somebody would set, each by itself and much of it together."""

from __future__ import annotations

from typing import Any

ENGINE = {"name": "vllm-qwen", "model": "Qwen/Qwen3-32B", "maxReplicas": 8}

GOOD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "engines by name": {"settings": {"endpoints": [{"url": "http://vllm-0:8000"}, {"url": "http://vllm-1:8000"}]}},
    "engines by other labels": {"engines": {"selector": "app in (vllm,sglang)", "port": "http"}},
    "a pool": {"engines": {"pool": "qwen"}},
    "a pool of the settings": {"settings": {"discovery": [{"kubernetes": {"pool": "qwen", "model_label": "model"}}]}},
    "a picker": {"engines": {"pool": "qwen"}, "epp": {"enabled": True}, "networkPolicy": {"enabled": True}},
    "admin token": {"existingSecrets": {"admin": {"name": "gate-admin"}}},
    "two admin tokens": {"existingSecrets": {"admin": {"name": "gate-admin", "readTokenKey": "read"}}},
    "keys": {
        "existingSecrets": {"environment": ["gate-keys", "engine-keys"]},
        "settings": {"tenants": [{"name": "team-a", "keys": ["${TEAM_A_KEY}"]}], "identity": {"require_key": True}},
    },
    "tls": {"existingSecrets": {"tls": "gate-tls"}, "metrics": {"serviceMonitor": True}},
    "reload": {"onSettingsChange": "reload", "existingSecrets": {"tls": "gate-tls"}},
    "nobody follows settings": {"onSettingsChange": "nothing"},
    "extras": {
        "extraArgs": ["--log-level=debug", "--endpoint=http://a:1", "--endpoint=http://b:1"],
        "extraEnv": [{"name": "ENGINE_KEY", "valueFrom": {"secretKeyRef": {"name": "engine", "key": "key"}}}],
        "extraVolumes": [{"name": "lists", "configMap": {"name": "engines"}}],
        "extraVolumeMounts": [{"name": "lists", "mountPath": "/lists"}],
        "extraContainers": [
            {
                "name": "watcher",
                "image": "watcher:1",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"a": "b"}}],
    },
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["llm.example.com", "llm.example.org"],
            "tlsSecret": "llm-tls",
            "paths": ["/v1", "/queue"],
            "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
        },
    },
    "http route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "infra"}],
            "hostnames": ["llm.example.com"],
        },
    },
    "both ways in": {
        "ingress": {"enabled": True, "hosts": ["a.example.com"]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "requestTimeout": ""},
    },
    "operator": {
        "metrics": {"serviceMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "monitoring"}},
    },
    "pods scraped": {
        "metrics": {"podMonitor": True, "interval": "5s", "dashboardAnnotations": {"grafana_folder": "LLM"}}
    },
    "nobody scrapes": {"metrics": {"annotations": False}},
    "keda": {"autoscaling": {"kind": "keda", "engines": [{**ENGINE, "minReplicas": 0}, {**ENGINE, "name": "other"}]}},
    "keda with tls": {
        "existingSecrets": {"tls": "gate-tls"},
        "autoscaling": {"kind": "keda", "engines": [ENGINE]},
    },
    "keda by prometheus": {
        "autoscaling": {"kind": "keda", "engines": [ENGINE], "prometheus": "http://prometheus.monitoring:9090"},
    },
    "hpa": {"autoscaling": {"kind": "hpa", "engines": [{**ENGINE, "kind": "StatefulSet", "minReplicas": 2}]}},
    "network": {"networkPolicy": {"enabled": True}},
    "a narrow network": {
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "to": [{"podSelector": {"matchLabels": {"app": "vllm"}}}],
        },
    },
    "a port for operators": {
        "adminPort": 9090,
        "existingSecrets": {"admin": {"name": "gate-admin"}},
        "service": {"type": "LoadBalancer"},
        "metrics": {"serviceMonitor": True},
        "autoscaling": {"kind": "keda", "engines": [ENGINE]},
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
    },
    "a port for operators, scraped by annotations": {"adminPort": 9090, "networkPolicy": {"enabled": True}},
    "batches": {"persistence": {"enabled": True, "storageClass": "fast"}},
    "batches where they were": {
        "persistence": {"enabled": True, "existingClaim": "old"},
        "strategy": {"type": "Recreate"},
    },
    "a ledger without batches": {"persistence": {"enabled": True}, "settings": {"batch": {"serve": False}}},
    "batches of several": {
        "replicas": 2,
        "settings": {"store": "postgresql://gate:gate@db/gate", "batch": {"serve": True}},
    },
    "workers": {
        "settings": {"workers": 3},
        "resources": {"requests": {"cpu": "4", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
    },
    "several": {"replicas": 3},
    "spread": {
        "replicas": 2,
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    },
    "shared": {
        "replicas": 3,
        "share": {"enabled": True},
        "existingSecrets": {"share": "gate-share"},
        "networkPolicy": {"enabled": True, "to": [{"podSelector": {}}]},
    },
    "shared, elected by a store": {
        "replicas": 2,
        "share": {"enabled": True},
        "existingSecrets": {"share": "gate-share", "environment": ["gate-store"]},
        "settings": {
            "share": {
                "elect": {"valkey": {"url": "valkey://:${STORE_PASSWORD}@store:6379", "key": "gate"}},
                "alone_after": "3s",
            }
        },
        "rbac": False,
    },
    "shared, by certificates": {
        "replicas": 2,
        "share": {"enabled": True, "port": 9443},
        "existingSecrets": {"tls": "gate-tls"},
        "settings": {
            "share": {
                "elect": {"kubernetes": {"lease": "other"}},
                "tls": {
                    "cert": "/etc/penstock-tls/tls.crt",
                    "key": "/etc/penstock-tls/tls.key",
                    "ca": "/etc/penstock-tls/ca.crt",
                },
                "name": "${NODE_NAME}",
            }
        },
        "extraEnv": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    },
    "an account that is there": {"serviceAccount": {"create": False, "name": "gateway"}, "rbac": False},
    "other names": {"nameOverride": "queue", "fullnameOverride": "front-door", "metrics": {"rules": True}},
    "by digest": {"image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]}},
    "longer to end": {"settings": {"queue": {"stop_timeout": "20m"}}, "terminationGracePeriodSeconds": 1260},
    "placed": {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podLabels": {"team": "llm"},
        "podAnnotations": {"note": "here"},
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "service": {"type": "LoadBalancer", "annotations": {"owner": "llm"}},
    },
    "none": {"replicas": 0, "podDisruptionBudget": {"enabled": False}},
    "much together": {
        "replicas": 2,
        "settings": {
            "store": {"url": "${DATABASE_URL}"},
            "tenants": [{"name": "team-a", "keys": ["${TEAM_A_KEY}"]}],
            "identity": {"require_key": True},
        },
        "existingSecrets": {
            "admin": {"name": "gate-admin", "readTokenKey": "read"},
            "environment": ["gate"],
            "tls": "gate-tls",
        },
        "onSettingsChange": "reload",
        "ingress": {"enabled": True, "hosts": ["llm.example.com"]},
        "metrics": {"podMonitor": True, "rules": True, "dashboard": True},
        "autoscaling": {"kind": "keda", "engines": [ENGINE]},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    },
}

#: Values that contradict each other, and a part of what is said to them.
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"listen": ":9000"}}, "settings.listen is :9000"),
    ({"settings": {"tls": {"cert": "/a", "key": "/b"}}}, "settings.tls would be overwritten: take existingSecrets.tls"),
    ({"settings": {"state_dir": "/x"}}, "settings.state_dir would be overwritten"),
    ({"settings": {"admin": {"listen": ":9090"}}}, "settings.admin.listen would be a port that nothing leads to"),
    ({"adminPort": 8080}, "adminPort and containerPort are both 8080"),
    (
        {"adminPort": 8081, "share": {"enabled": True}, "existingSecrets": {"share": "s"}},
        "adminPort and share.port are both 8081",
    ),
    (
        {"settings": {"admin": {"token": "${TOKEN}"}}, "existingSecrets": {"admin": {"name": "a"}}},
        "settings.admin.token and existingSecrets.admin.name are two tokens",
    ),
    (
        {"existingSecrets": {"admin": {"readTokenKey": "read"}}},
        "existingSecrets.admin.readTokenKey names an entry of no",
    ),
    ({"settings": {"queue": {"stop_timeout": "10m"}}}, "queue.stop_timeout (610 s)"),
    ({"terminationGracePeriodSeconds": 30}, "terminationGracePeriodSeconds is 30"),
    ({"replicas": 2, "persistence": {"enabled": True}}, "persistence holds the batches of one gateway"),
    (
        {"persistence": {"enabled": True}, "settings": {"batch": {"store": "postgres", "url": "x"}}},
        "persistence has nothing to hold",
    ),
    (
        {"persistence": {"enabled": True}, "settings": {"store": "postgresql://gate@db/gate"}},
        "persistence has nothing to hold",
    ),
    (
        {"persistence": {"enabled": True}, "settings": {"store": "/x"}},
        "settings.store would be a second store",
    ),
    (
        {"persistence": {"enabled": True}, "settings": {"batch": {"data": "/x"}}},
        "settings.batch.data would be a second store",
    ),
    ({"persistence": {"enabled": True}, "strategy": {"type": "RollingUpdate"}}, "two gateways on one batch store"),
    ({"settings": {"batch": {"data": "/data"}}}, "settings.batch.data names a folder of a read-only file system"),
    ({"settings": {"store": "/data"}}, "settings.store names a folder of a read-only file system"),
    ({"settings": {"store": {"data": "/data"}}}, "settings.store.data names a folder of a read-only file system"),
    ({"share": {"enabled": True}}, "share.enabled needs existingSecrets.share"),
    (
        {"share": {"enabled": True, "port": 8080}, "existingSecrets": {"share": "s"}},
        "share.port and containerPort are both 8080",
    ),
    (
        {"share": {"enabled": True}, "existingSecrets": {"share": "s"}, "persistence": {"enabled": True}},
        "share.enabled with persistence.enabled",
    ),
    (
        {
            "share": {"enabled": True},
            "existingSecrets": {"share": "s"},
            "settings": {"share": {"advertise": "10.0.0.1:8081"}},
        },
        "settings.share.advertise would be overwritten: take share.port",
    ),
    (
        {
            "share": {"enabled": True},
            "existingSecrets": {"share": "s"},
            "settings": {"share": {"elect": {"kubernetes": {}, "valkey": {"url": "valkey://store"}}}},
        },
        "settings.share.elect names kubernetes and valkey",
    ),
    (
        {
            "share": {"enabled": True},
            "existingSecrets": {"share": "s"},
            "settings": {"share": {"elect": {"static": "10.0.0.1:8081"}}},
        },
        "settings.share.elect.static names one address",
    ),
    ({"settings": {"share": {}}}, "settings.share without share.enabled"),
    ({"existingSecrets": {"share": "s"}}, "existingSecrets.share does nothing"),
    ({"epp": {"enabled": True, "port": 8080}}, "epp.port and containerPort are both 8080"),
    ({"epp": {"enabled": True}, "settings": {"epp": {"listen": ":1"}}}, "settings.epp.listen would be overwritten"),
    ({"settings": {"epp": {"listen": ":9002"}}}, "settings.epp without epp.enabled"),
    ({"ingress": {"enabled": True}}, "ingress.enabled without ingress.hosts"),
    ({"httpRoute": {"enabled": True}}, "httpRoute.enabled without httpRoute.parentRefs"),
    ({"metrics": {"serviceMonitor": True, "podMonitor": True}}, "scrape every gateway twice"),
    ({"autoscaling": {"engines": [ENGINE]}}, "autoscaling.engines without autoscaling.kind"),
    ({"autoscaling": {"kind": "keda"}}, "autoscaling.engines names nothing to scale"),
    ({"autoscaling": {"kind": "keda", "engines": [ENGINE, ENGINE]}}, "Deployment/vllm-qwen stands there twice"),
    (
        {"autoscaling": {"kind": "keda", "engines": [{**ENGINE, "minReplicas": 9}]}},
        "Deployment/vllm-qwen has minReplicas 9 and maxReplicas 8",
    ),
    ({"autoscaling": {"kind": "hpa", "engines": [{**ENGINE, "minReplicas": 0}]}}, "cannot go to zero with an HPA"),
    ({"extraArgs": ["--config=/x"]}, "extraArgs: the chart sets --config itself"),
    ({"extraArgs": ["--log-level=info", "--log-level=debug"]}, "extraArgs: --log-level is given twice"),
    ({"extraEnv": [{"name": "PENSTOCK__LISTEN", "value": ":1"}]}, "extraEnv: the chart sets PENSTOCK__LISTEN itself"),
    ({"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "extraEnv: A is given twice"),
    ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes: there is a volume tmp already"),
    ({"extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]}, "extraVolumeMounts: there is no volume x"),
    ({"extraContainers": [{"name": "penstock"}]}, "extraContainers: there is a container penstock already"),
]

#: What the schema refuses, and where it says the mistake is.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "'replica' not allowed"),
    ({"replicas": -1}, "/replicas"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"service": {"type": "External"}}, "/service/type"),
    ({"onSettingsChange": "now"}, "/onSettingsChange"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"containerPort": 80}, "/containerPort"),
    ({"existingSecrets": {"token": "x"}}, "'token' not allowed"),
    ({"autoscaling": {"kind": "keda", "engines": [{"name": "x", "maxReplicas": 2}]}}, "'model'"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable"),
    ({"persistence": {"size": "much"}}, "/persistence/size"),
    ({"metrics": {"interval": "often"}}, "/metrics/interval"),
    ({"ingress": {"paths": ["v1"]}}, "/ingress/paths/0"),
    ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0"),
]
