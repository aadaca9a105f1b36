//! Discovery of the GPUs.
#![allow(unsafe_code, reason = "the driver is asked about its devices")]

use super::context::Context;
use super::driver::Driver;
use super::error::{CudaError, NO_DEVICE};
use super::library::DRIVER_VERSION_MIN;
use super::search::Search;
use super::unavailable::Unavailable;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUdevice_attribute_enum as Attribute};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

/// The most devices that are listed.
const DEVICES_MAX: c_int = 64;

/// The driver of this machine, and the GPUs that it shows to this process.
pub struct Devices {
    driver: Arc<Driver>,
    infos: Vec<DeviceInfo>,
}

/// Properties of a GPU, known before any work runs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Number of the device among those that the process sees.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// PCI address, as `domain:bus:device.function`.
    pub pci: String,
    /// Compute capability: major and minor.
    pub compute_capability: (u32, u32),
    /// Total memory.
    pub memory_bytes: u64,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// The most threads in one block.
    pub block_threads_max: u32,
    /// The most blocks along each dimension of a launch.
    pub grid_max: [u32; 3],
    /// The most threads along each dimension of a block.
    pub block_max: [u32; 3],
    /// Default limit of a block's shared memory.
    pub shared_bytes: u32,
    /// Limit of a block's shared memory with
    /// [`Function::allow_shared_bytes`](super::Function::allow_shared_bytes).
    pub shared_bytes_max: u32,
    /// Size of the second-level cache.
    pub l2_bytes: u64,
    /// Highest clock of the cores, in clocks per second; 0 if the driver does not report it.
    pub clock_hz: u64,
    /// Nominal memory bandwidth, in bytes per second; 0 if the driver does not report it.
    pub memory_bytes_per_s: u64,
    /// Whether memory can be mapped into reserved addresses, as
    /// [`AddressRange`](super::AddressRange)s require.
    pub maps_memory: bool,
    /// Whether blocks of memory can be [exported](super::ExportedMemory) to other processes, as
    /// files.
    pub exports_memory: bool,
}

impl Devices {
    /// Opens the driver that `search` finds and lists its devices: at least one. Never panics,
    /// whatever is installed.
    pub fn discover(search: &Search) -> Result<Self, Unavailable> {
        let driver = Driver::find(search)?;
        let path = driver.path().to_owned();
        if driver.version() < DRIVER_VERSION_MIN {
            let found = version(driver.version());
            let needed = version(DRIVER_VERSION_MIN);
            return Err(Unavailable::DriverTooOld { path, found, needed });
        }
        let infos = list(&driver);
        let infos =
            infos.map_err(|error| Unavailable::Unusable { path: path.clone(), why: error.to_string() })?;
        if infos.is_empty() {
            return Err(Unavailable::NoDevice { path });
        }
        Ok(Self { driver: Arc::new(driver), infos })
    }

    /// Every device, by its ordinal.
    #[must_use]
    pub fn infos(&self) -> &[DeviceInfo] {
        &self.infos
    }

    /// Path of the driver's library.
    #[must_use]
    pub fn driver_path(&self) -> &std::path::Path {
        self.driver.path()
    }

    /// The version of CUDA that the driver implements, as `13.0`.
    #[must_use]
    pub fn driver_version(&self) -> String {
        version(self.driver.version())
    }

    /// Major version of [`Devices::driver_version`].
    #[must_use]
    pub fn driver_major(&self) -> u32 {
        self.driver.version() / 1000
    }

    /// Other devices whose [exported](super::ExportedMemory) memory this device can read in place:
    /// those that can export memory and have a peer connection.
    pub fn siblings(&self, ordinal: u32) -> Result<Vec<u32>, CudaError> {
        let own = handle(&self.driver, ordinal)?;
        let mut siblings = Vec::new();
        for info in self.infos.iter().filter(|info| info.ordinal != ordinal && info.exports_memory) {
            let mut can = 0;
            let peer = handle(&self.driver, info.ordinal)?;
            // SAFETY: `can` outlives the call.
            unsafe { self.driver.cuDeviceCanAccessPeer(&mut can, own, peer) }?;
            if can != 0 {
                siblings.push(info.ordinal);
            }
        }
        Ok(siblings)
    }

    /// Opens a device. The first context of a process on a device takes some hundred milliseconds
    /// and as many megabytes of its memory.
    pub fn open(&self, ordinal: u32) -> Result<Arc<Context>, CudaError> {
        let info = self.infos.iter().find(|info| info.ordinal == ordinal);
        let info = info.ok_or_else(|| {
            CudaError::Invalid(format!("there is no device {ordinal}: there are {}", self.infos.len()))
        })?;
        Context::open(self.driver.clone(), info.clone())
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("path", &self.driver_path())
            .field("infos", &self.infos)
            .finish_non_exhaustive()
    }
}

/// The driver's handle of a device.
pub(super) fn handle(driver: &Driver, ordinal: u32) -> Result<CUdevice, CudaError> {
    let mut device = 0;
    let ordinal = c_int::try_from(ordinal).map_err(|error| CudaError::Invalid(error.to_string()))?;
    // SAFETY: `device` outlives the call.
    unsafe { driver.cuDeviceGet(&mut device, ordinal) }?;
    Ok(device)
}

fn list(driver: &Driver) -> Result<Vec<DeviceInfo>, CudaError> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    match unsafe { driver.cuDeviceGetCount(&mut count) } {
        Ok(()) => {}
        Err(error) if error.is(NO_DEVICE) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    (0..count.clamp(0, DEVICES_MAX)).map(|ordinal| info(driver, ordinal.unsigned_abs())).collect()
}

fn info(driver: &Driver, ordinal: u32) -> Result<DeviceInfo, CudaError> {
    let device = handle(driver, ordinal)?;
    let number = |attribute| attribute_of(driver, device, attribute);
    let mut memory_bytes = 0;
    // SAFETY: `memory_bytes` outlives the call.
    unsafe { driver.cuDeviceTotalMem_v2(&mut memory_bytes, device) }?;
    // SAFETY: the buffer passed by `text` has the stated length.
    let name = text(|buffer, len| unsafe { driver.cuDeviceGetName(buffer, len, device) })?;
    // SAFETY: as above.
    let pci = text(|buffer, len| unsafe { driver.cuDeviceGetPCIBusId(buffer, len, device) })?;
    // Two transfers per clock, over the width of the bus.
    let clock_khz = u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0));
    let bus_bits = u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0));
    Ok(DeviceInfo {
        ordinal,
        name,
        pci,
        compute_capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: memory_bytes as u64,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        block_threads_max: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        grid_max: [
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        block_max: [
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        shared_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        shared_bytes_max: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        clock_hz: 1000 * u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0)),
        memory_bytes_per_s: 2 * clock_khz * 1000 * (bus_bits / 8),
        maps_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0,
        exports_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
            != 0,
    })
}

fn attribute_of(driver: &Driver, device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, CudaError> {
    let mut value = 0;
    // SAFETY: `value` outlives the call.
    unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Reads a text that the driver writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    const BYTES_MAX: u16 = 256;
    let mut buffer = [0_u8; BYTES_MAX as usize];
    write(buffer.as_mut_ptr().cast(), c_int::from(BYTES_MAX))?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
