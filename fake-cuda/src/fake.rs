//! One fake driver, and the controls that tests have over it.
#![allow(unsafe_code, reason = "the fake driver is a shared library with a C interface")]

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::Mutex;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

/// Idle instances for reuse: each uses some of the process's static thread-local storage, which is
/// never returned.
static IDLE: Mutex<Vec<Instance>> = Mutex::new(Vec::new());

/// Libraries in the folder of the driver, where they look for the driver. cuBLASLt and NVRTC exist
/// in two versions.
const LIBRARIES: [&str; 5] =
    ["libnvidia-ml.so.1", "libcublasLt.so.12", "libcublasLt.so.13", "libnvrtc.so.12", "libnvrtc.so.13"];

/// A driver with separate devices.
///
/// At the drop, all objects of the driver must be released, and no call may have violated the
/// driver's rules; otherwise, the test fails.
pub struct Fake {
    /// Present until the drop.
    instance: Option<Instance>,
}

/// A completed copy between host and device.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Device address.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Direction of the copy.
    pub direction: Direction,
    /// Ordinal of the device.
    pub device: u32,
    /// End of the copy on the device's clock.
    pub end_ns: u64,
}

/// Direction of a copy.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the device.
    ToDevice = 1,
    /// From the device to the host.
    ToHost = 2,
}

struct Instance {
    path: PathBuf,
    set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
    count: unsafe extern "C" fn(*const c_char) -> u64,
    violations: unsafe extern "C" fn(*mut u8, usize) -> usize,
    copies: unsafe extern "C" fn(*mut Copied, usize) -> usize,
    reset: unsafe extern "C" fn(),
    _folder: TempDir,
}

impl Fake {
    /// Open a driver with one device. `seed` selects the order in which streams are drained; 0 is
    /// the order of submission.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "tests choose a seed")]
    pub fn new(seed: u64) -> Self {
        let idle = IDLE.lock().pop();
        let fake = Self { instance: Some(idle.unwrap_or_else(Instance::open)) };
        fake.set("seed", seed);
        fake
    }

    /// Change a setting of the list in `driver/control.cpp`. The number of devices, their memory
    /// and the versions are fixed when the driver is first opened.
    ///
    /// # Panics
    /// If no setting has this name.
    #[allow(clippy::needless_pass_by_value, reason = "accepts numbers and strings")]
    pub fn set(&self, name: &str, value: impl ToString) -> &Self {
        let c_name = c_text(name);
        let c_value = c_text(&value.to_string());
        // SAFETY: both texts end with a zero and outlive the call.
        let known = unsafe { (self.instance().set)(c_name.as_ptr(), c_value.as_ptr()) };
        assert!(known != 0, "the fake driver has no setting {name:?}");
        self
    }

    /// Make `count` allocations fail with out-of-memory, after `left` successful ones.
    pub fn fail_allocations(&self, left: u64, count: u64) {
        self.set("allocations_left", left).set("allocations_fail", count);
    }

    /// Make a launch fault, after `left` successful ones.
    pub fn fail_launch(&self, left: u64) {
        self.set("launches_left", left);
    }

    /// Allow `left` more copies of a mebibyte or more to the device, and hold the following ones
    /// until [`let_loads_go`](Self::let_loads_go). Other work continues.
    pub fn hold_loads_after(&self, left: u64) {
        self.set("loads_left", left);
    }

    /// Release the copies that [`hold_loads_after`](Self::hold_loads_after) holds.
    pub fn let_loads_go(&self) {
        self.set("loads_left", "all");
    }

    /// Stop all work, and block callers that wait for work, until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.set("paused", 1);
    }

    /// Continue after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.set("paused", 0);
    }

    /// Path of the driver library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.instance().path
    }

    /// Path of this driver's `libcublasLt.so` of a major version: 12 or 13.
    #[must_use]
    pub fn cublas_lt(&self, major: u32) -> PathBuf {
        self.path().with_file_name(format!("libcublasLt.so.{major}"))
    }

    /// Path of this driver's `libnvrtc.so` of a major version: 12 or 13.
    #[must_use]
    pub fn nvrtc(&self, major: u32) -> PathBuf {
        self.path().with_file_name(format!("libnvrtc.so.{major}"))
    }

    /// Number of events (`launches`, `graph_launches`, `cublasLtMatmul`, `nvrtcCompileProgram`,
    /// `cubin_loads`, `ptx_loads`, `computed` kernels and graphs, `copies_to_device`, `fills`,
    /// `blocks_created`, `waits`), or a current amount (`used_bytes`, `live_streams`,
    /// `live_blocks`...).
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        let what = c_text(what);
        // SAFETY: the text ends with a zero and outlives the call.
        unsafe { (self.instance().count)(what.as_ptr()) }
    }

    /// Completed copies between host and device, in order.
    #[must_use]
    pub fn copies(&self) -> Vec<Copied> {
        let none = Copied { address: 0, bytes: 0, direction: Direction::ToDevice, device: 0, end_ns: 0 };
        // SAFETY: with a length of 0, the function writes nothing.
        let len = unsafe { (self.instance().copies)(std::ptr::null_mut(), 0) };
        let mut copies = vec![none; len];
        // SAFETY: the buffer has the stated length, and the layout matches the library's.
        let now = unsafe { (self.instance().copies)(copies.as_mut_ptr(), copies.len()) };
        copies.truncate(now);
        copies
    }

    /// Violations of the driver's rules so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut text = vec![0; 64 << 10];
        // SAFETY: the buffer has the stated length.
        let len = unsafe { (self.instance().violations)(text.as_mut_ptr(), text.len()) };
        text.truncate(len);
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Objects that are not released yet, by kind.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let kinds = [
            "contexts",
            "live_streams",
            "live_events",
            "live_graphs",
            "live_modules",
            "live_regions",
            "live_reservations",
            "live_blocks",
            "live_pinned",
            "live_library_objects",
        ];
        let counted = kinds.into_iter().map(|kind| (kind, self.count(kind)));
        counted.filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}")).collect()
    }

    fn instance(&self) -> &Instance {
        // Only the drop takes the instance.
        self.instance.as_ref().unwrap_or_else(|| unreachable!("a fake that is dropped"))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let violations = self.violations();
        let left = self.left();
        if violations.is_empty() && left.is_empty() {
            if let Some(instance) = self.instance.take() {
                // SAFETY: no object of the driver is left.
                unsafe { (instance.reset)() };
                IDLE.lock().push(instance);
            }
        } else if thread::panicking() {
            eprintln!("fake driver: violations {violations:?}, left {left:?}");
        } else {
            panic!("fake driver: violations {violations:?}, left {left:?}");
        }
    }
}

impl Instance {
    /// Open a new copy of the library, which the loader treats as a different library.
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the fake driver");
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(crate::library(), &path).expect("a copy of the fake driver");
        for name in LIBRARIES {
            let copied = std::fs::copy(crate::library().with_file_name(name), path.with_file_name(name));
            copied.expect("a copy of a fake library");
        }
        // SAFETY: the library's initialisers have no preconditions.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.expect("the fake driver");
        // SAFETY: the library has these functions with these types, and is never closed.
        let instance = unsafe {
            Self {
                path,
                set: *library.get("fakecuda_set").expect("a function of the fake driver"),
                count: *library.get("fakecuda_count").expect("a function of the fake driver"),
                violations: *library.get("fakecuda_violations").expect("a function of the fake driver"),
                copies: *library.get("fakecuda_copies").expect("a function of the fake driver"),
                reset: *library.get("fakecuda_reset").expect("a function of the fake driver"),
                _folder: folder,
            }
        };
        std::mem::forget(library);
        instance
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text).expect("a text without zeroes")
}
