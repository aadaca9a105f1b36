"""Renders the chart with Helm, and validates the objects against the schemas of Kubernetes."""

import itertools
import re
import unittest
from pathlib import Path

import helm_python as helm
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parents[1]
KUSTOMIZE = CHART.parent / "kubernetes"

# The oldest and the newest supported version.
VERSIONS = ["1.34", "1.37"]


def render(values=None, name="weir"):
    """Objects of a release, by kind and name."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values or {}, name=name, namespace="serving")
    texts = [text for file, text in files.items() if file.endswith(".yaml")]
    documents = [each for text in texts for each in yaml.safe_load_all(text) if each]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(objects) == len(documents), "two objects have the same name"
    return objects


def pod_of(objects, name="weir"):
    return objects["StatefulSet", name]["spec"]["template"]["spec"]


def environment(container):
    return {each["name"]: each.get("value") for each in container["env"]}


def base():
    """Objects of the kustomization, by kind and name."""
    documents = []
    for file in ("settings", "etcd", "nodes", "network"):
        documents += yaml.safe_load_all((KUSTOMIZE / f"base/{file}.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def component(name):
    """The object of an optional component of the kustomization."""
    return yaml.safe_load((KUSTOMIZE / f"autoscaling/{name}/{name}.yaml").read_text())


def to_zero():
    """The objects of the kustomization whose nodes scale to zero, by kind and name."""
    objects = base()
    scaled = component("keda")
    objects[scaled["kind"], "weir"] = scaled
    folder = KUSTOMIZE / "autoscaling/zero"
    for each in yaml.safe_load_all((folder / "activator.yaml").read_text()):
        objects[each["kind"], each["metadata"]["name"]] = each
    del objects["StatefulSet", "weir"]["spec"]["replicas"]  # By the component keda.
    for patch in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]:
        kind, pattern = patch["target"]["kind"], re.compile(patch["target"]["name"])
        targets = [each for (of, name), each in objects.items() if of == kind and pattern.fullmatch(name)]
        assert targets, "the patch has no target"
        for target, operation in itertools.product(targets, yaml.safe_load(patch["patch"])):
            apply(target, operation)
    return objects


def apply(target, operation):
    """Applies an operation of a JSON patch."""
    *path, last = (part.replace("~1", "/") for part in operation["path"].split("/")[1:])
    for part in path:
        target = target[int(part) if isinstance(target, list) else part]
    if last == "-":
        target.append(operation["value"])
    else:
        assert operation["op"] == "add" or last in target, operation
        target[last] = operation["value"]


def comparable(rendered):
    """The parts of an object that the chart and the kustomization have in common.

    Leaves out metadata, images and the targets of ports, and gives selectors the same label.
    """
    if isinstance(rendered, list):
        return [comparable(each) for each in rendered]
    if not isinstance(rendered, dict):
        return rendered
    if "app.kubernetes.io/instance" in rendered:
        shared = "app.kubernetes.io/part-of"
        if shared in rendered and "app.kubernetes.io/name" not in rendered:
            return {shared: rendered[shared]}
        return {"app": rendered["app.kubernetes.io/name"]}
    if "matchExpressions" in rendered:
        return [{**each, "key": "app"} for each in rendered["matchExpressions"]]
    left_out = {"image", "imagePullPolicy", "targetPort"}
    if rendered.get("kind"):
        left_out.add("metadata")
    kept = {key: comparable(value) for key, value in rendered.items() if key not in left_out}
    if kept.get("type") == "ClusterIP":
        del kept["type"]
    if "template" in kept:
        del kept["template"]["metadata"]
    return kept


EVERYTHING = {
    "image": {"repository": "registry.test/weir", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "nodes": {
        "replicas": 5,
        "settings": {"sandbox.bytes_max": 268435456, "outbound.private": True, "price": 0.5},
        "env": {"WEIR_LOG": "debug"},
        "gpu": {"count": 2},
        "storage": {"size": "50Gi", "className": "fast"},
        "podAnnotations": {"example.test/a": "b"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "reserved", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    },
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.test/c": "d"}},
    "datastore": {"etcd": {"replicas": 5, "storage": {"size": "8Gi", "className": "fast"}}},
    "blobs": {"url": "s3://blobs/weir", "endpoint": "http://minio.storage:9000", "secretName": ""},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": {
        "kind": "hpa",
        "minReplicas": 3,
        "maxReplicas": 20,
        "backlogSeconds": 0.5,
        "behavior": {"scaleDown": {"selectPolicy": "Disabled"}},
        "hpa": {"metric": "backlog"},
    },
}
KEDA = {
    "autoscaling": {
        "kind": "keda",
        "backlogSeconds": 1.5,
        "keda": {"labels": {"cluster": "eu"}, "authentication": "prometheus", "pollingIntervalSeconds": 5},
    }
}
TO_ZERO = {
    "activator": {"enabled": True},
    "autoscaling": {"kind": "keda", "minReplicas": 0, "keda": {"cooldownSeconds": 60}},
    "nodes": {"gpu": {"count": 1}},
}
EXTERNAL = {"datastore": {"url": "etcd://etcd.infra:2379/weir"}}
SMALL = {
    "nodes": {"replicas": 1, "settings": {"gateway.drain_timeout_ms": None, "sandbox.secrets.key_file": None}},
    "datastore": {"etcd": {"replicas": 1}},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
}


class Chart(unittest.TestCase):
    def test_objects_are_valid(self):
        for values in [{}, EVERYTHING, EXTERNAL, SMALL, KEDA, TO_ZERO]:
            for (kind, name), rendered in render(values, "a-release").items():
                if kind in ("ServiceMonitor", "ScaledObject"):
                    continue  # Their schemas belong to the operator of Prometheus and to KEDA.
                for version in VERSIONS:
                    with self.subTest(kind=kind, name=name, version=version):
                        kubernetes_validate.validate(rendered, version, strict=True)

    def test_defaults_are_those_of_the_kustomization(self):
        rendered, expected = render(), base()
        # This policy is for a namespace of its own.
        del expected["NetworkPolicy", "default-deny"]
        self.assertEqual(rendered.keys(), expected.keys())
        for (kind, name), wanted in expected.items():
            with self.subTest(kind=kind, name=name):
                actual, wanted = comparable(rendered[kind, name]), comparable(wanted)
                self.assertEqual(actual, wanted)

    def test_selectors_select_the_pods_of_their_part(self):
        for values in [{}, EVERYTHING]:
            rendered = render(values, "other")
            for name in ("other-weir", "other-weir-etcd"):
                labels = rendered["StatefulSet", name]["spec"]["template"]["metadata"]["labels"]
                selectors = [
                    rendered["StatefulSet", name]["spec"]["selector"]["matchLabels"],
                    rendered["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"],
                    rendered["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"],
                    rendered["Service", name]["spec"]["selector"],
                ]
                for selector in selectors:
                    self.assertLessEqual(selector.items(), labels.items())
            parts = [rendered["Service", name]["spec"]["selector"] for name in ("other-weir", "other-weir-etcd")]
            self.assertNotEqual(*parts)
            etcd = rendered["NetworkPolicy", "other-weir-etcd"]["spec"]["ingress"]
            clients = [rule["from"][0]["podSelector"]["matchLabels"] for rule in etcd]
            self.assertEqual(clients, parts)

    def test_nodes_find_each_other_and_etcd_by_the_names_of_the_release(self):
        rendered = render(name="other")
        data = rendered["ConfigMap", "other-weir"]["data"]
        hosts = [f"other-weir-etcd-{n}.other-weir-etcd" for n in range(3)]
        self.assertEqual(data["WEIR_DATASTORE"], f"etcd://{','.join(hosts)}/weir")
        node = environment(pod_of(rendered, "other-weir")["containers"][0])
        self.assertEqual(node["WEIR_ADVERTISE"], "$(POD).other-weir-nodes:9347")
        self.assertEqual(rendered["StatefulSet", "other-weir"]["spec"]["serviceName"], "other-weir-nodes")
        self.assertTrue(rendered["Service", "other-weir-nodes"]["spec"]["publishNotReadyAddresses"])
        etcd = environment(pod_of(rendered, "other-weir-etcd")["containers"][0])
        cluster = [f"other-weir-etcd-{n}=http://{host}:2380" for n, host in enumerate(hosts)]
        self.assertEqual(etcd["ETCD_INITIAL_CLUSTER"], ",".join(cluster))

    def test_values_reach_the_objects(self):
        rendered = render(EVERYTHING)
        nodes, pod = rendered["StatefulSet", "weir"]["spec"], pod_of(rendered)
        container = pod["containers"][0]
        self.assertEqual(render({"nodes": {"replicas": 5}})["StatefulSet", "weir"]["spec"]["replicas"], 5)
        self.assertEqual(container["image"], f"registry.test/weir@sha256:{'0' * 64}")
        limits = {"memory": "8Gi", "nvidia.com/gpu": 2}
        self.assertEqual(container["resources"]["limits"], limits)
        self.assertEqual([each["key"] for each in pod["tolerations"]], ["nvidia.com/gpu", "reserved"])
        claim = nodes["volumeClaimTemplates"][0]["spec"]
        self.assertEqual((claim["storageClassName"], claim["resources"]["requests"]["storage"]), ("fast", "50Gi"))
        data = rendered["ConfigMap", "weir"]["data"]
        settings = (
            "gateway.drain_timeout_ms=30000,outbound.private=true,price=0.5,sandbox.bytes_max=268435456,"
            "sandbox.secrets.key_file=/secrets/keys"
        )
        self.assertEqual(data["WEIR_SET"], settings)
        self.assertEqual((data["AWS_ENDPOINT"], data["AWS_ALLOW_HTTP"]), ("http://minio.storage:9000", "true"))
        self.assertEqual(data["WEIR_LOG"], "debug")
        self.assertEqual(len(container["envFrom"]), 1, "without a secret of the object store")
        self.assertEqual(rendered["Service", "weir"]["spec"]["ports"][0]["port"], 80)
        self.assertEqual(rendered["StatefulSet", "weir-etcd"]["spec"]["replicas"], 5)

    def test_metrics_are_read_by_a_token_from_the_clients_service_only(self):
        rendered = render(EVERYTHING)
        monitor = rendered["ServiceMonitor", "weir"]
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")
        endpoint = monitor["spec"]["endpoints"][0]
        self.assertEqual(endpoint["authorization"]["credentials"], {"name": "weir-metrics", "key": "token"})
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        services = {name: each for (kind, name), each in rendered.items() if kind == "Service"}
        selected = [name for name, each in services.items() if selector <= each["metadata"]["labels"].items()]
        self.assertEqual(selected, ["weir"])
        ports = [port["name"] for port in services["weir"]["spec"]["ports"]]
        self.assertIn(endpoint["port"], ports)
        self.assertNotIn(("ServiceMonitor", "weir"), render())

    def test_autoscalers_are_those_of_the_kustomization(self):
        for kind, name in [("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")]:
            with self.subTest(kind=kind):
                rendered, expected = render({"autoscaling": {"kind": kind}}), component(kind)
                self.assertEqual(expected["metadata"]["name"], "weir")
                # The chart's tests render into another namespace than the kustomization's.
                actual = yaml.safe_load(yaml.safe_dump(rendered[name, "weir"]).replace("serving", "weir"))
                self.assertEqual(actual["spec"], expected["spec"])
                self.assertEqual(actual["apiVersion"], expected["apiVersion"])
                self.assertNotIn("replicas", rendered["StatefulSet", "weir"]["spec"], "set by the autoscaler")
        self.assertFalse({"HorizontalPodAutoscaler", "ScaledObject"} & {kind for kind, _ in render()})

    def test_values_of_autoscaling_reach_the_autoscalers(self):
        hpa = render(EVERYTHING, "other")["HorizontalPodAutoscaler", "other-weir"]["spec"]
        self.assertEqual((hpa["minReplicas"], hpa["maxReplicas"]), (3, 20))
        self.assertEqual(hpa["scaleTargetRef"]["name"], "other-weir")
        external = hpa["metrics"][0]["external"]
        self.assertEqual(external["metric"]["name"], "backlog")
        self.assertEqual(external["metric"]["selector"]["matchLabels"], {"service": "other-weir"})
        self.assertEqual(external["target"], {"type": "Value", "value": "0.5"})
        self.assertEqual(hpa["behavior"]["scaleDown"]["selectPolicy"], "Disabled")
        scaled = render(KEDA, "other")["ScaledObject", "other-weir"]["spec"]
        trigger = scaled["triggers"][0]
        labels = '{namespace="serving",service="other-weir",cluster="eu"}'
        query = (
            f"sum(weir_scheduler_backlog_seconds{labels}) / clamp_min(sum(weir_scheduler_run_slots{labels}), 1)"
        )
        self.assertEqual(trigger["metadata"]["query"], query)
        self.assertEqual((trigger["metadata"]["threshold"], trigger["metricType"]), ("1.5", "Value"))
        self.assertEqual(trigger["authenticationRef"], {"name": "prometheus"})
        self.assertEqual((scaled["scaleTargetRef"]["name"], scaled["pollingInterval"]), ("other-weir", 5))

    def test_scaling_to_zero_is_that_of_the_kustomization(self):
        values = {"activator": {"enabled": True}, "autoscaling": {"kind": "keda", "minReplicas": 0}}
        rendered, expected = render(values), to_zero()
        del expected["NetworkPolicy", "default-deny"]
        self.assertEqual(rendered.keys(), expected.keys())
        for (kind, name), wanted in expected.items():
            with self.subTest(kind=kind, name=name):
                # The chart's tests render into another namespace than the kustomization's.
                actual = yaml.safe_load(yaml.safe_dump(rendered[kind, name]).replace("serving", "weir"))
                self.assertEqual(comparable(actual), comparable(wanted))

    def test_activator_has_no_devices_and_receives_what_nodes_receive(self):
        rendered = render(TO_ZERO, "other")
        self.assertNotIn(("StatefulSet", "weir-activator"), render())
        activator = rendered["StatefulSet", "other-weir-activator"]["spec"]
        self.assertEqual(activator["replicas"], 2)
        container = activator["template"]["spec"]["containers"][0]
        self.assertEqual(environment(container)["WEIR_DEVICES"], "none")
        self.assertEqual(environment(container)["WEIR_ADVERTISE"], "$(POD).other-weir-nodes:9347")
        self.assertEqual(activator["serviceName"], "other-weir-nodes")
        self.assertNotIn("nvidia.com/gpu", container["resources"]["limits"])
        nodes = rendered["StatefulSet", "other-weir"]["spec"]
        self.assertNotIn("WEIR_DEVICES", environment(nodes["template"]["spec"]["containers"][0]))
        labels = [each["template"]["metadata"]["labels"].items() for each in (activator, nodes)]
        policies = {name: rendered["NetworkPolicy", name]["spec"] for name in ("other-weir", "other-weir-etcd")}
        shared = [
            rendered["Service", "other-weir"]["spec"]["selector"],
            rendered["Service", "other-weir-nodes"]["spec"]["selector"],
        ]
        for selector in shared:
            self.assertTrue(all(selector.items() <= each for each in labels), selector)
        for selector in [
            policies["other-weir"]["podSelector"],
            policies["other-weir"]["egress"][1]["to"][0]["podSelector"],
            policies["other-weir-etcd"]["ingress"][0]["from"][0]["podSelector"],
        ]:
            names = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["weir", "weir-activator"]}
            self.assertEqual(selector["matchExpressions"], [names])
            self.assertEqual(selector["matchLabels"], {"app.kubernetes.io/instance": "other"})
        # An autoscaler counts the pods that the set selects.
        self.assertFalse(nodes["selector"]["matchLabels"].items() <= labels[0])
        self.assertFalse(activator["selector"]["matchLabels"].items() <= labels[1])
        etcd = rendered["StatefulSet", "other-weir-etcd"]["spec"]["template"]["metadata"]["labels"]
        self.assertFalse(shared[0].items() <= etcd.items())

    def test_nodes_have_the_label_of_members_before_the_activator_is_enabled(self):
        pods = render()["StatefulSet", "weir"]["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(render(TO_ZERO)["Service", "weir"]["spec"]["selector"].items(), pods.items())
        pods = base()["StatefulSet", "weir"]["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(to_zero()["Service", "weir"]["spec"]["selector"].items(), pods.items())

    def test_memory_limits_of_the_activator_are_below_those_of_its_pod(self):
        values = {**TO_ZERO, "nodes": {"settings": {"models.versions_keep": 3}}}
        container = pod_of(render(values), "weir-activator")["containers"][0]
        settings = dict(each.split("=") for each in environment(container)["WEIR_SET"].split(","))
        self.assertEqual((settings["models.versions_keep"], settings["gateway.drain_timeout_ms"]), ("3", "30000"))
        self.assertEqual(settings["sandbox.compiles_max"], "1")
        limits = [
            "gateway.arena_bytes_max",
            "gateway.answers.bytes_max",
            "sandbox.compile_memory_bytes_max",
            "models.validate_memory_bytes_max",
        ]
        self.assertEqual(container["resources"]["limits"]["memory"], "4Gi")
        # The rest is for the node itself.
        self.assertLessEqual(sum(int(settings[each]) for each in limits), (4 << 30) - (256 << 20))

    def test_nodes_scale_to_zero_while_no_calls_come(self):
        scaled = render(TO_ZERO)["ScaledObject", "weir"]["spec"]
        self.assertEqual((scaled["minReplicaCount"], scaled["cooldownPeriod"]), (0, 60))
        self.assertEqual(scaled["scaleTargetRef"]["name"], "weir")
        backlog, calls, running = (trigger["metadata"] for trigger in scaled["triggers"])
        self.assertIn("weir_scheduler_backlog_seconds", backlog["query"])
        self.assertIn("weir_invocations_total", calls["query"])
        # A call may take longer than the window of the rate and the cooldown.
        for metric in ("weir_invocations_running", "weir_async_running"):
            self.assertIn(f"sum({metric}{{", running["query"])
        self.assertEqual({each["activationThreshold"] for each in (backlog, calls, running)}, {"0"})
        for values in [
            {"autoscaling": {"kind": "keda", "minReplicas": 0}},
            {"activator": {"enabled": True}, "autoscaling": {"kind": "hpa", "minReplicas": 0}},
        ]:
            with self.subTest(values=values), self.assertRaisesRegex(Exception, "minReplicas is 0"):
                render(values)

    def test_an_existing_etcd_replaces_the_own_one(self):
        rendered = render(EXTERNAL)
        self.assertFalse([name for _, name in rendered if "etcd" in name])
        self.assertEqual(rendered["ConfigMap", "weir"]["data"]["WEIR_DATASTORE"], EXTERNAL["datastore"]["url"])

    def test_parts_can_be_left_out(self):
        kinds = {kind for kind, _ in render(SMALL)}
        self.assertEqual(kinds, {"ConfigMap", "Service", "StatefulSet"})

    def test_changed_settings_restart_the_nodes(self):
        def checksum(values):
            template = render(values)["StatefulSet", "weir"]["spec"]["template"]
            return template["metadata"]["annotations"]["checksum/settings"]

        self.assertEqual(checksum({}), checksum({"nodes": {"replicas": 4}}))
        self.assertNotEqual(checksum({}), checksum({"blobs": {"url": "s3://other"}}))

    def test_wrong_values_are_rejected(self):
        for values in [
            {"nodes": {"replicas": -1}},
            {"nodes": {"replica": 3}},
            {"nodes": {"settings": {"a": "b,c=d"}}},
            {"datastore": {"url": "http://etcd:2379"}},
            {"datastore": {"etcd": {"replicas": 2}}},
            {"blobs": {"url": "file:///data"}},
            {"image": {"digest": "latest"}},
            {"metrics": {"enabled": True}},
            {"autoscaling": {"kind": "vpa"}},
            {"autoscaling": {"kind": "hpa", "minReplicas": 0}},
            {"autoscaling": {"kind": "hpa", "minReplicas": 11}},
            {"autoscaling": {"kind": "keda", "backlogSeconds": 0}},
            {"autoscaling": {"kind": "keda", "keda": {"labels": {"a": 'b"}'}}}},
        ]:
            with self.subTest(values=values), self.assertRaises(helm.HelmError):
                render(values)


if __name__ == "__main__":
    unittest.main()
