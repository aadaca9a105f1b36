//! Debian packages that setup installs.

use weir_provision::apt::DebianPackage;

/// C++ compiler for the GPU tests, which compile the CUDA kernels for the CPU.
pub(super) const COMPILER: [DebianPackage; 1] = [DebianPackage {
    name: "g++",
    files: &["/usr/bin/g++", "/usr/include/c++/*/cmath", "/usr/include/stdio.h", "/usr/bin/ld"],
}];

/// etcd for the tests of clusters.
pub(super) const ETCD: [DebianPackage; 1] =
    [DebianPackage { name: "etcd-server", files: &["/usr/bin/etcd"] }];

/// NATS for the tests of triggers.
pub(super) const NATS: [DebianPackage; 1] =
    [DebianPackage { name: "nats-server", files: &["/usr/sbin/nats-server"] }];

#[cfg(test)]
mod tests {
    use super::{COMPILER, ETCD};
    use crate::prerequisites::PREREQUISITES;
    use crate::process;
    use std::collections::{BTreeMap, BTreeSet};
    use std::process::Command;
    use weir_provision::DEBIAN_PACKAGES;
    use weir_provision::apt::DebianPackage;

    /// Installed packages with their dependencies, and the packages that provide virtual names.
    #[derive(Default)]
    struct Installed {
        depends: BTreeMap<String, Vec<String>>,
        provided_by: BTreeMap<String, Vec<String>>,
    }

    impl Installed {
        /// Parses the lines of `dpkg-query`: name, dependencies and provided names, separated by
        /// tabs.
        fn read(lines: &str) -> Self {
            let mut installed = Self::default();
            for line in lines.lines() {
                let mut fields = line.split('\t');
                let name = fields.next().unwrap_or_default().to_owned();
                let depends = fields.next().map(names).unwrap_or_default();
                for virtual_name in fields.next().map(names).unwrap_or_default() {
                    installed.provided_by.entry(virtual_name).or_default().push(name.clone());
                }
                installed.depends.entry(name).or_default().extend(depends);
            }
            installed
        }

        /// `packages` with all transitive dependencies.
        fn closure<'a>(&self, packages: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
            let mut closure = BTreeSet::new();
            let mut open: Vec<String> = packages.into_iter().map(str::to_owned).collect();
            while let Some(name) = open.pop() {
                open.extend(self.provided_by.get(&name).into_iter().flatten().cloned());
                if let Some(depends) = self.depends.get(&name).filter(|_| closure.insert(name)) {
                    open.extend(depends.iter().cloned());
                }
            }
            closure
        }

        /// Expected files of `packages` that no package installs, neither one of `packages`, nor a
        /// prerequisite of the README, nor a dependency of these. `owners` returns the packages
        /// that own a file.
        fn missing<'a>(
            &self,
            packages: &'a [DebianPackage],
            owners: impl Fn(&str) -> Vec<String>,
        ) -> Vec<&'a str> {
            let stated = PREREQUISITES.iter().map(|prerequisite| prerequisite.package);
            let closure = self.closure(stated.chain(packages.iter().map(|package| package.name)));
            let files = packages.iter().flat_map(|package| package.files).copied();
            files.filter(|file| !owners(file).iter().any(|owner| closure.contains(owner))).collect()
        }
    }

    /// Names in a dependency list such as `a (>= 1), b | c:any`, including all alternatives.
    fn names(list: &str) -> Vec<String> {
        let words = list.split([',', '|']).filter_map(|entry| entry.split_whitespace().next());
        words.map(|word| word.split(':').next().unwrap_or_default().to_owned()).collect()
    }

    /// Installed packages that own a file.
    fn owners(file: &str) -> Vec<String> {
        let found = process::answer(Command::new("dpkg-query").args(["--search", file])).unwrap_or_default();
        found.lines().filter_map(|line| line.split_once(": ")).flat_map(|(owners, _)| names(owners)).collect()
    }

    #[test]
    fn files_of_recommended_packages_are_reported() {
        let lines = "protoc\tlibprotoc (= 3), libc6\t\nlibprotoc\tlibc6 | libc\t\nprotos\t\t\nmawk\t\tawk\nlibc6\tawk\t\n";
        let installed = Installed::read(lines);
        let reached = installed.closure(["protoc"]);
        assert_eq!(
            reached.iter().map(String::as_str).collect::<Vec<_>>(),
            ["libc6", "libprotoc", "mawk", "protoc"]
        );
        let packages =
            [DebianPackage { name: "protoc", files: &["/bin/protoc", "/include/descriptor.proto"] }];
        let owner = |file: &str| vec![if file.starts_with("/bin") { "protoc" } else { "protos" }.to_owned()];
        assert_eq!(installed.missing(&packages, owner), ["/include/descriptor.proto"]);
    }

    /// Guards runs on fresh machines: no package that setup installs may need a package that is
    /// installed only by chance.
    #[test]
    fn installed_packages_provide_all_used_files() {
        let format = "--showformat=${Package}\\t${Depends}, ${Pre-Depends}\\t${Provides}\\n";
        let Ok(lines) = process::answer(Command::new("dpkg-query").args(["--show", format])) else {
            eprintln!("skipped: this machine has no dpkg");
            return;
        };
        let installed = Installed::read(&lines);
        for packages in [&COMPILER[..], &ETCD, &DEBIAN_PACKAGES] {
            if let Some(absent) =
                packages.iter().find(|package| !installed.depends.contains_key(package.name))
            {
                eprintln!("skipped: {} is not installed", absent.name);
                continue;
            }
            let missing = installed.missing(packages, owners);
            assert!(missing.is_empty(), "no package that setup installs brings {missing:?}");
        }
    }
}
