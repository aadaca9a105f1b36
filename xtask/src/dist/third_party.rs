//! The software that a release contains: a bill of materials in CycloneDX's format, and the
//! licences of its packages.

mod licences;
mod metadata;

use crate::repo::Repo;
use anyhow::{Context as _, Result};
use licences::Licences;
use metadata::{LinkedPackage, of_dashboard, packages};
use serde_json::{Value, json};
use std::path::Path;
use weir_provision::OnnxRuntimeRelease;

/// File name of the licences in a release.
pub(super) const LICENCES: &str = "THIRD-PARTY-LICENSES.txt";
/// File name of the bill of materials in a release.
pub(super) const MATERIALS: &str = "sbom.cdx.json";

/// Writes both files into `folder`, for the program with all its features, its dashboard
/// and ONNX Runtime.
pub(super) fn write(repo: &Repo, folder: &Path) -> Result<()> {
    let packages = [packages(repo)?, of_dashboard(repo)?].into_iter().flatten().collect::<Vec<_>>();
    let mut licences = Licences::from_packages(&packages)?;
    for file in OnnxRuntimeRelease::notices(&repo.local().join("lib")) {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        licences.add(&text, &format!("onnxruntime {}", OnnxRuntimeRelease::VERSION));
    }
    let put = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    put(LICENCES, licences.to_string())?;
    put(MATERIALS, format!("{:#}\n", materials(&packages)))
}

/// The bill of materials, CycloneDX 1.6.
fn materials(packages: &[LinkedPackage]) -> Value {
    let onnxruntime = json!({
        "type": "library",
        "name": "onnxruntime",
        "version": OnnxRuntimeRelease::VERSION,
        "purl": format!("pkg:pypi/onnxruntime@{}", OnnxRuntimeRelease::VERSION),
        "licenses": [{ "expression": "MIT" }],
    });
    let components = packages.iter().map(component).chain([onnxruntime]);
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "weir",
                "version": env!("CARGO_PKG_VERSION"),
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components.collect::<Vec<_>>(),
    })
}

fn component(LinkedPackage { registry, name, version, licence, checksum, .. }: &LinkedPackage) -> Value {
    let hashes = checksum.iter().map(|sha256| json!({ "alg": "SHA-256", "content": sha256 }));
    json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:{registry}/{name}@{version}"),
        "licenses": [{ "expression": licence }],
        "hashes": hashes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_the_program_has_a_licence_and_a_checksum() {
        let packages = packages(&Repo::find()).unwrap();
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        assert!(names.contains(&"wasmtime") && names.contains(&"tokio"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("weir") || *name == "proptest"), "{names:?}");
        let text = Licences::from_packages(&packages).unwrap().to_string();
        for LinkedPackage { name, version, licence, checksum, .. } in &packages {
            assert!(!licence.is_empty() && !licence.contains('/'), "{name}: {licence}");
            assert_eq!(checksum.as_ref().map(String::len), Some(64), "{name}");
            assert!(text.contains(&format!("{name} {version}")), "{name} is not in the licences");
        }
        let materials = materials(&packages);
        assert_eq!(materials["components"].as_array().unwrap().len(), packages.len() + 1);
    }
}
