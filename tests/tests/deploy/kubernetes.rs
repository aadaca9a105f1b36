//! The files for Kubernetes: pods without privileges, and networks that only their clients reach.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use yaml_serde::Value;

fn base() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/base")
}

/// The objects in all files, with the names of the files.
fn objects() -> Vec<(String, Value)> {
    let files = std::fs::read_dir(base()).unwrap().map(|file| file.unwrap().path());
    let objects = files.flat_map(|file| {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let documents: Vec<Value> =
            yaml_serde::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap()).collect();
        documents.into_iter().map(move |document| (name.clone(), document))
    });
    objects.collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    objects().into_iter().map(|(_, object)| object).filter(|object| object["kind"] == *kind).collect()
}

/// Reads a file of an autoscaling component.
fn of_autoscaling(file: &str) -> Value {
    let path = base().join("../autoscaling").join(file);
    yaml_serde::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn app(labels: &Value) -> String {
    labels["app"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn all_files_are_part_of_the_kustomization() {
    let kustomization = &of_kind("Kustomization")[0];
    let listed: BTreeSet<_> = kustomization["resources"]
        .as_sequence()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    let mut present: BTreeSet<_> = objects().into_iter().map(|(file, _)| file).collect();
    present.remove("kustomization.yaml");
    assert_eq!(listed, present);
}

#[test]
fn pods_have_no_privileges_and_no_token_of_the_cluster() {
    let sets = of_kind("StatefulSet");
    assert_eq!(sets.len(), 2);
    for set in sets {
        let pod = &set["spec"]["template"]["spec"];
        let name = app(&set["metadata"]["labels"]);
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        for container in pod["containers"].as_sequence().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(context["capabilities"]["drop"][0], "ALL", "{name}");
        }
    }
}

#[test]
fn every_pod_has_a_network_policy_and_etcd_serves_only_nodes_and_peers() {
    let policies = of_kind("NetworkPolicy");
    let of_app = |name: &str| {
        let found = policies.iter().find(|policy| app(&policy["spec"]["podSelector"]["matchLabels"]) == name);
        found.unwrap_or_else(|| panic!("no policy for {name:?}"))
    };
    assert_eq!(of_app("")["spec"]["policyTypes"][0], "Ingress", "pods without a policy accept no traffic");
    assert!(of_app("")["spec"]["ingress"].is_null());
    for set in of_kind("StatefulSet") {
        of_app(&app(&set["spec"]["template"]["metadata"]["labels"]));
    }
    let clients: BTreeSet<_> = of_app("weir-etcd")["spec"]["ingress"]
        .as_sequence()
        .unwrap()
        .iter()
        .flat_map(|rule| rule["from"].as_sequence().expect("the rule admits all pods"))
        .map(|from| app(&from["podSelector"]["matchLabels"]))
        .collect();
    assert_eq!(clients, BTreeSet::from(["weir".to_owned(), "weir-etcd".to_owned()]));
    let egress = of_app("weir")["spec"]["egress"].as_sequence().unwrap();
    let blocks = egress.iter().filter_map(|rule| rule["to"].as_sequence()).flatten();
    let all = blocks.map(|to| &to["ipBlock"]).find(|block| block["cidr"] == "0.0.0.0/0").unwrap();
    assert_eq!(all["except"][0], "169.254.0.0/16", "metadata services are reachable");
}

/// Otherwise, each `kubectl apply` would reset the number of nodes that the autoscaler has chosen.
#[test]
fn autoscaling_components_scale_the_nodes_and_omit_the_replica_count() {
    let sets = of_kind("StatefulSet");
    let nodes = sets.iter().find(|set| app(&set["metadata"]["labels"]) == "weir").unwrap();
    assert!(nodes["spec"]["replicas"].is_number(), "there is something to remove");
    for name in ["hpa", "keda"] {
        let component = of_autoscaling(&format!("{name}/kustomization.yaml"));
        assert_eq!(component["kind"], "Component", "{name}");
        let [resource] = &component["resources"].as_sequence().unwrap()[..] else { panic!("{name}") };
        let scaler = of_autoscaling(&format!("{name}/{}", resource.as_str().unwrap()));
        let [patch] = &component["patches"].as_sequence().unwrap()[..] else { panic!("{name}") };
        for target in [&patch["target"], &scaler["spec"]["scaleTargetRef"]] {
            assert_eq!(
                (&target["kind"], &target["name"]),
                (&nodes["kind"], &nodes["metadata"]["name"]),
                "{name}"
            );
        }
        let operations: Value = yaml_serde::from_str(patch["patch"].as_str().unwrap()).unwrap();
        let [operation] = &operations.as_sequence().unwrap()[..] else { panic!("{name}") };
        let operation = (operation["op"].as_str(), operation["path"].as_str());
        assert_eq!(operation, (Some("remove"), Some("/spec/replicas")));
    }
}
