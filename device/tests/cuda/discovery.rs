use crate::support::{devices, search};
use std::path::Path;
use std::process::Command;
use weir_device::cuda::{Devices, Monitor, Search, Unavailable};
use weir_fake_cuda::Fake;

#[test]
fn devices_are_described() {
    let fake = Fake::new(0);
    fake.set("devices", 2).set("sm", 89);
    let devices = devices(&fake);
    let infos = devices.infos();
    assert_eq!(infos.iter().map(|info| info.ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((infos[1].compute_capability, infos[1].name.as_str()), ((8, 9), "Fake GPU"));
    assert_eq!((infos[0].pci.as_str(), infos[1].pci.as_str()), ("0000:01:00.0", "0000:02:00.0"));
    assert_eq!((infos[0].multiprocessors, infos[0].shared_bytes_max), (132, 227 << 10));
    assert_eq!((devices.driver_version().as_str(), infos[0].memory_bytes), ("13.0", 1 << 30));
    assert!(infos[0].memory_bytes_per_s > 4_000_000_000_000);
    assert_eq!(infos[0].clock_hz, 1_980_000_000);
    assert!(devices.open(2).is_err());
}

#[test]
fn too_old_driver_is_reported() {
    let fake = Fake::new(0);
    fake.set("driver_version", 12_020);
    let error = Devices::discover(&search(&fake)).unwrap_err();
    assert!(matches!(error, Unavailable::DriverTooOld { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("12.2") && text.contains("12.4") && text.contains("550"), "{text}");
}

#[test]
fn driver_without_devices_is_reported() {
    let fake = Fake::new(0);
    fake.set("devices", 0);
    let error = Devices::discover(&search(&fake)).unwrap_err();
    assert!(
        matches!(error, Unavailable::NoDevice { .. }) && error.to_string().contains("nvidia-smi"),
        "{error}"
    );
}

#[test]
fn wrong_library_is_reported_with_missing_functions() {
    // Any shared library will do: this process has the C library open.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path =
        maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("libc.so"));
    let found = Search { driver: Some(path.unwrap().into()), ..Search::default() };
    let error = Devices::discover(&found).unwrap_err();
    assert!(matches!(error, Unavailable::MissingFunctions { .. }), "{error}");
    assert!(error.to_string().contains("cuMemAddressReserve"), "{error}");
}

#[test]
fn discovery_without_a_driver_does_not_panic() {
    let nowhere = Search { folders: vec!["/nowhere".into()], ..Search::default() };
    let error = Devices::discover(&nowhere).unwrap_err();
    assert!(
        error.to_string().contains("no NVIDIA driver was found (looked for libcuda.so.1 in /nowhere)"),
        "{error}"
    );
    // Discovery must not panic, whatever this machine has installed.
    found_by_child("environment", None);
}

/// Set in the environment of a child that looks for a driver by its soname: `environment` or
/// `loader`.
///
/// In the process of the tests, the loader would find a fake driver that another test has loaded
/// under that name.
const CHILD: &str = "WEIR_DEVICE_TEST_CHILD";

/// Output of a child whose loader searches `folder` before its usual folders.
fn found_by_child(search: &str, folder: Option<&Path>) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "discovery::child_process_reports_discovery", "--nocapture"]).env(CHILD, search);
    child.envs(folder.map(|folder| ("LD_LIBRARY_PATH", folder)));
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Output of a child that finds the driver through the loader in `folder`.
fn found_by_loader(folder: &Path) -> String {
    found_by_child("loader", Some(folder))
}

/// Main function of the child process; does nothing in a normal test run.
#[test]
fn child_process_reports_discovery() {
    let Some(search) = std::env::var_os(CHILD) else { return };
    let search = if search == "environment" {
        Search::from_environment()
    } else {
        Search { folders: vec!["/nowhere".into()], loader: true, ..Search::default() }
    };
    match Devices::discover(&search) {
        Ok(devices) => {
            let figures = Monitor::new(&devices).read().len();
            println!("driver at {}, {figures} monitored", devices.driver_path().display());
        }
        Err(unavailable) => println!("{unavailable}"),
    }
}

#[test]
fn driver_in_no_listed_folder_is_found_by_its_soname() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let library = weir_fake_cuda::library();
    // Like an installed driver: the soname is a link to a file with a different name.
    let file = elsewhere.path().canonicalize().unwrap().join("libcuda.so.550.1");
    std::fs::copy(&library, &file).unwrap();
    std::os::unix::fs::symlink(&file, folder.path().join("libcuda.so.1")).unwrap();
    // The monitoring library is not in the folder of the driver's file, and is also found by its
    // soname.
    let monitoring = "libnvidia-ml.so.1";
    std::fs::copy(library.with_file_name(monitoring), folder.path().join(monitoring)).unwrap();
    let found = found_by_loader(folder.path());
    assert!(found.contains(&format!("driver at {}, 1 monitored", file.display())), "{found}");
}

#[test]
fn driver_that_the_loader_cannot_open_is_reported_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libcuda.so.1"), "not a library").unwrap();
    let found = found_by_loader(folder.path());
    let places = "looked for libcuda.so.1 in /nowhere, and by the loader, which says: ";
    assert!(found.contains(places) && found.contains(&folder.path().display().to_string()), "{found}");
}
