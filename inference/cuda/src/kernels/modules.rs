//! Modules of one device. The first use of a module loads it. Other users of the same module wait;
//! users of other modules load these concurrently.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Once};
use weir_device::cuda::{Context, CudaError, Module};

/// Loaded module, or `None` before its first use.
type Cell = Mutex<Option<Arc<Module>>>;

/// Freshly loaded module.
pub struct LoadedModule {
    module: Arc<Module>,
    /// Size in bytes of the code passed to the driver.
    pub image_bytes: usize,
}

/// Modules of kernels, each loaded on first use.
pub struct Modules {
    context: Arc<Context>,
    compute_capability: u32,
    /// Locked while a cell is looked up, not while its module is loaded.
    cells: Mutex<HashMap<weir_kernels::KernelModule, Arc<Cell>>>,
    told: Once,
}

impl Modules {
    pub(super) fn new(context: &Arc<Context>, compute_capability: u32) -> Self {
        Self { context: context.clone(), compute_capability, cells: Mutex::default(), told: Once::new() }
    }

    /// Returns the modules for this device.
    pub(super) fn all(&self) -> impl Iterator<Item = weir_kernels::KernelModule> {
        let compute_capability = self.compute_capability;
        let all = weir_kernels::KernelModule::ALL.into_iter();
        all.filter(move |module| module.compute_capability_min() <= compute_capability)
    }

    /// Returns a module, and loads it on first use. Machine code loads in milliseconds. PTX takes
    /// seconds, unless the driver has cached its compilation.
    pub(super) fn get(&self, module: weir_kernels::KernelModule) -> Result<Arc<Module>, CudaError> {
        let cell = {
            let mut cells = self.cells.lock();
            cells.entry(module).or_default().clone()
        };
        let mut cell = cell.lock();
        if let Some(loaded) = &*cell {
            return Ok(loaded.clone());
        }
        let loaded = self.load(module)?;
        *cell = Some(loaded.clone());
        Ok(loaded)
    }

    /// Loads the machine code of a module. Falls back to PTX if there is no machine code for this
    /// device, or if the driver rejects it, as a driver older than the format does.
    fn load(&self, module: weir_kernels::KernelModule) -> Result<Arc<Module>, CudaError> {
        match self.load_machine_code(module) {
            Some(Err(refused @ CudaError::Failed { .. })) if !refused.is_out_of_memory() => {
                self.tell(module, &refused);
            }
            Some(loaded) => return loaded.map(|loaded| loaded.module),
            None => self.tell(module, &"there is none for the device's compute capability"),
        }
        self.load_ptx(module).map(|loaded| loaded.module)
    }

    /// Loads the machine code of a module, even if the module is already loaded. Returns `None` if
    /// there is no machine code for this device.
    pub fn load_machine_code(
        &self,
        module: weir_kernels::KernelModule,
    ) -> Option<Result<LoadedModule, CudaError>> {
        module.cubin(self.compute_capability).map(|cubin| self.load_image(&cubin))
    }

    /// Compiles and loads the PTX of a module, even if the module is already loaded.
    pub fn load_ptx(&self, module: weir_kernels::KernelModule) -> Result<LoadedModule, CudaError> {
        let ptx = module.ptx(self.compute_capability).ok_or_else(|| {
            let name = module.name();
            let capability = self.compute_capability;
            CudaError::Invalid(format!(
                "there are no {name} kernels for devices of compute capability {capability}"
            ))
        })?;
        self.load_image(ptx.as_bytes())
    }

    fn load_image(&self, image: &[u8]) -> Result<LoadedModule, CudaError> {
        Ok(LoadedModule { module: Module::load(&self.context, image)?, image_bytes: image.len() })
    }

    /// Reports once on stderr, which goes to the node's log, why the driver has to compile kernels.
    fn tell(&self, module: weir_kernels::KernelModule, why: &dyn Display) {
        let name = module.name();
        self.told.call_once(|| {
            eprintln!(
                "the worker of a device: the driver compiles kernels from PTX, which takes seconds once: machine code of {name} cannot be used: {why}"
            );
        });
    }
}
