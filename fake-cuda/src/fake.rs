//! One fake driver, and what a test may ask of it.
#![allow(unsafe_code, reason = "the fake driver is a shared library, opened and asked here")]

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use tempfile::TempDir;

/// Instances that no test uses: each takes a little of a process's room for thread-local variables, which is not given back.
static IDLE: Mutex<Vec<Instance>> = Mutex::new(Vec::new());

/// The libraries beside the driver, which find it there: those above it in two versions.
const LIBRARIES: [&str; 5] =
    ["libnvidia-ml.so.1", "libcublasLt.so.12", "libcublasLt.so.13", "libnvrtc.so.12", "libnvrtc.so.13"];

/// A driver with devices of its own.
///
/// When it is dropped, nothing may be left of what was made with it, and nothing may have been done with it that no correct program does: else
/// the test fails.
pub struct Fake {
    /// Present until the drop.
    instance: Option<Instance>,
}

/// A copy between host and device, as it was made.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where on the device.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Which device's.
    pub device: u32,
    /// When it was done, by the device's clock.
    pub end_ns: u64,
}

/// Which way a copy goes.
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
    /// A driver with one device, drained in the order that `seed` stands for; 0 is the order in which work is given.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "a seed is chosen")]
    pub fn new(seed: u64) -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fake = Self { instance: Some(idle.unwrap_or_else(Instance::open)) };
        fake.set("seed", seed);
        fake
    }

    /// Change a setting, as `driver/control.cpp` lists them. Devices, their memory and versions are settled when the driver is first opened.
    ///
    /// # Panics
    /// Where there is none of that name.
    #[allow(clippy::needless_pass_by_value, reason = "numbers and texts alike")]
    pub fn set(&self, name: &str, value: impl ToString) -> &Self {
        let (c_name, c_value) = (c_text(name), c_text(&value.to_string()));
        // SAFETY: both texts end with a zero and outlive the call.
        let known = unsafe { (self.instance().set)(c_name.as_ptr(), c_value.as_ptr()) };
        assert!(known != 0, "the fake driver has no setting {name:?}");
        self
    }

    /// Let allocations fail for want of memory: `count` of them, after `left` more.
    pub fn fail_allocations(&self, left: u64, count: u64) {
        self.set("allocations_left", left).set("allocations_fail", count);
    }

    /// Let a launch fault, after `left` more.
    pub fn fail_launch(&self, left: u64) {
        self.set("launches_left", left);
    }

    /// Make so many more copies of a mebibyte or more to the device, and keep those behind them waiting, until [`let_loads_go`](Self::let_loads_go). All else
    /// goes on.
    pub fn hold_loads_after(&self, left: u64) {
        self.set("loads_left", left);
    }

    /// Go on after [`hold_loads_after`](Self::hold_loads_after).
    pub fn let_loads_go(&self) {
        self.set("loads_left", "all");
    }

    /// Do no work, and keep those who wait for some waiting, until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.set("paused", 1);
    }

    /// Go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.set("paused", 0);
    }

    /// The library's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.instance().path
    }

    /// The file of the `libcublasLt.so` of a major version that belongs to this driver: 12 or 13.
    #[must_use]
    pub fn cublas_lt(&self, major: u32) -> PathBuf {
        self.path().with_file_name(format!("libcublasLt.so.{major}"))
    }

    /// The file of the `libnvrtc.so` of a major version that belongs to this driver: 12 or 13.
    #[must_use]
    pub fn nvrtc(&self, major: u32) -> PathBuf {
        self.path().with_file_name(format!("libnvrtc.so.{major}"))
    }

    /// How often something happened (`launches`, `graph_launches`, `cublasLtMatmul`, `nvrtcCompileProgram`, `cubin_loads`, `ptx_loads`, `computed` kernels and graphs, `copies_to_device`, `fills`, `blocks_created`, `waits`), or how much of something there is now
    /// (`used_bytes`, `live_streams`, `live_blocks`...).
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        let what = c_text(what);
        // SAFETY: the text ends with a zero and outlives the call.
        unsafe { (self.instance().count)(what.as_ptr()) }
    }

    /// The copies between host and device that were made, in order.
    #[must_use]
    pub fn copies(&self) -> Vec<Copied> {
        let none = Copied { address: 0, bytes: 0, direction: Direction::ToDevice, device: 0, end_ns: 0 };
        // SAFETY: without room, nothing is written.
        let len = unsafe { (self.instance().copies)(std::ptr::null_mut(), 0) };
        let mut copies = vec![none; len];
        // SAFETY: there is room for as many as it says, and the layout is the library's.
        let now = unsafe { (self.instance().copies)(copies.as_mut_ptr(), copies.len()) };
        copies.truncate(now);
        copies
    }

    /// What was done that no correct program does.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut text = vec![0; 64 << 10];
        // SAFETY: there is room for as many bytes as it says.
        let len = unsafe { (self.instance().violations)(text.as_mut_ptr(), text.len()) };
        text.truncate(len);
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// What is left that somebody made and did not let go of.
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
        // Taken in the drop only.
        self.instance.as_ref().unwrap_or_else(|| unreachable!("a fake that is dropped"))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let (violations, left) = (self.violations(), self.left());
        if violations.is_empty() && left.is_empty() {
            if let Some(instance) = self.instance.take() {
                // SAFETY: nothing is left that was made with it.
                unsafe { (instance.reset)() };
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
            }
        } else if thread::panicking() {
            eprintln!("fake driver: violations {violations:?}, left {left:?}");
        } else {
            panic!("fake driver: violations {violations:?}, left {left:?}");
        }
    }
}

impl Instance {
    /// A copy of the library, which the loader takes for another one.
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the fake driver");
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(crate::library(), &path).expect("a copy of the fake driver");
        for name in LIBRARIES {
            let copied = std::fs::copy(crate::library().with_file_name(name), path.with_file_name(name));
            copied.expect("a copy of a fake library");
        }
        // SAFETY: the library's initialisers ask nothing of us.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.expect("the fake driver");
        // SAFETY: the library has these functions with these types; it is never closed.
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
