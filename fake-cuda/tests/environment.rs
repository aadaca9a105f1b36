//! Tests of the library as a whole process uses it: one driver, configured by the environment.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the test calls a C interface, and fails by panicking")]

use libloading::Library;
use std::env;
use std::ffi::c_int;
use std::process::{Command, Output};

const CHILD: &str = "WEIR_FAKE_CUDA_TEST_CHILD";

fn child(settings: &str) -> Output {
    let exe = env::current_exe().unwrap();
    let mut child = Command::new(exe);
    child.args(["--exact", "child_process_prints_devices", "--nocapture"]);
    child.env(CHILD, "1").env("WEIR_FAKE_CUDA", settings).output().unwrap()
}

/// Body of the child process; does nothing in the parent.
#[test]
fn child_process_prints_devices() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let mut count = 0;
    let mut version = 0;
    // SAFETY: the library has these functions with these types.
    unsafe {
        let library = Library::new(weir_fake_cuda::library()).unwrap();
        let init = library.get::<unsafe extern "C" fn(u32) -> u32>("cuInit").unwrap();
        let devices = library.get::<unsafe extern "C" fn(*mut c_int) -> u32>("cuDeviceGetCount").unwrap();
        let driver = library.get::<unsafe extern "C" fn(*mut c_int) -> u32>("cuDriverGetVersion").unwrap();
        assert_eq!((init(0), devices(&mut count), driver(&mut version)), (0, 0, 0));
    }
    println!("{count} devices, version {version}");
}

#[test]
fn settings_come_from_the_environment() {
    let output = child("devices=3,driver_version=12040");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("3 devices, version 12040"), "{output:?}");
}

#[test]
fn misspelt_setting_is_reported() {
    let output = child("device=3");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("no setting device=3"), "{output:?}");
}
