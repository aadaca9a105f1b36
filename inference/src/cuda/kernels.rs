//! The kernels of a device, loaded when they are first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use weir_device::cuda::{Context, CudaError, Function, Module};
use weir_kernels::Kernel;

/// Shared memory that every function may have; more has to be asked for.
const SHARED_BYTES: u32 = 48 << 10;

/// A module that is loaded.
pub(super) struct LoadedModule {
    module: Arc<Module>,
    /// Size of the code that was given to the driver.
    pub(super) image_bytes: usize,
}

/// Modules and functions that were loaded before.
pub(super) struct Kernels {
    context: Arc<Context>,
    compute_capability: u32,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<weir_kernels::Module, Arc<Module>>,
    functions: HashMap<Kernel, (Function, u32)>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>, compute_capability: u32) -> Self {
        Self { context: Arc::clone(context), compute_capability, loaded: Mutex::default() }
    }

    /// The function of a kernel, allowed so much shared memory. The first one of a module takes some milliseconds.
    pub(super) fn function(&self, kernel: &Kernel, shared_bytes: u32) -> Result<Function, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = &mut *loaded;
        if let Some((function, allowed_bytes)) = loaded.functions.get_mut(kernel) {
            allow(function, allowed_bytes, shared_bytes)?;
            return Ok(function.clone());
        }
        let module = match loaded.modules.get(&kernel.module) {
            Some(module) => module,
            None => {
                let module = self.load(kernel.module)?.module;
                loaded.modules.entry(kernel.module).or_insert(module)
            }
        };
        let (function, mut allowed_bytes) = (module.function(&kernel.name)?, SHARED_BYTES);
        allow(&function, &mut allowed_bytes, shared_bytes)?;
        loaded.functions.insert(kernel.clone(), (function.clone(), allowed_bytes));
        Ok(function)
    }

    /// Load a module, whether or not it was loaded before. Takes some milliseconds where the driver has to compile it.
    pub(super) fn load(&self, module: weir_kernels::Module) -> Result<LoadedModule, CudaError> {
        let image = module.ptx(self.compute_capability).ok_or_else(|| {
            let (name, capability) = (module.name(), self.compute_capability);
            CudaError::Invalid(format!(
                "there are no {name} kernels for devices of compute capability {capability}"
            ))
        })?;
        let (image_bytes, module) = (image.len(), Module::load(&self.context, image.as_bytes())?);
        Ok(LoadedModule { module, image_bytes })
    }
}

fn allow(function: &Function, allowed_bytes: &mut u32, shared_bytes: u32) -> Result<(), CudaError> {
    if shared_bytes > *allowed_bytes {
        function.allow_shared_bytes(shared_bytes)?;
        *allowed_bytes = shared_bytes;
    }
    Ok(())
}
