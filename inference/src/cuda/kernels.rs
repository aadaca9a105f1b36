//! The kernels of a device: loaded ahead, or by their first user.

mod ahead;
mod modules;

use ahead::Ahead;
pub(super) use modules::Modules;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_device::cuda::{Context, CudaError, Function};
use weir_kernels::Kernel;

/// Shared memory that every function may have; more has to be asked for.
const SHARED_BYTES: u32 = 48 << 10;

/// The functions that were asked for, and their modules.
pub(super) struct Kernels {
    modules: Arc<Modules>,
    /// With the shared memory that each is allowed. Held for single calls of the driver, and never while a module is loaded.
    functions: Mutex<HashMap<Kernel, (Function, u32)>>,
    ahead: Option<Ahead>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>, compute_capability: u32) -> Self {
        let modules = Arc::new(Modules::new(context, compute_capability));
        Self { modules, functions: Mutex::default(), ahead: None }
    }

    /// Load all modules in the background, from now on.
    pub(super) fn load_ahead(&mut self) {
        self.ahead = Ahead::start(&self.modules);
    }

    /// Wait for what [`Self::load_ahead`] has begun.
    #[cfg(test)]
    pub(super) fn wait_until_loaded(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.join();
        }
    }

    /// The function of a kernel, allowed so much shared memory. Waits for its module, and for no other.
    pub(super) fn function(&self, kernel: &Kernel, shared_bytes: u32) -> Result<Function, CudaError> {
        if let Some(found) = self.known(kernel, shared_bytes) {
            return found;
        }
        let function = self.modules.get(kernel.module)?.function(&kernel.name)?;
        self.functions().entry(kernel.clone()).or_insert((function.clone(), SHARED_BYTES));
        self.known(kernel, shared_bytes).unwrap_or(Ok(function))
    }

    /// A function that was asked for before, allowed so much shared memory.
    fn known(&self, kernel: &Kernel, shared_bytes: u32) -> Option<Result<Function, CudaError>> {
        let mut functions = self.functions();
        let (function, allowed_bytes) = functions.get_mut(kernel)?;
        Some(allow(function, allowed_bytes, shared_bytes).map(|()| function.clone()))
    }

    fn functions(&self) -> MutexGuard<'_, HashMap<Kernel, (Function, u32)>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The modules, for measuring how long each takes to load.
    pub(super) fn modules(&self) -> &Modules {
        &self.modules
    }
}

fn allow(function: &Function, allowed_bytes: &mut u32, shared_bytes: u32) -> Result<(), CudaError> {
    if shared_bytes > *allowed_bytes {
        function.allow_shared_bytes(shared_bytes)?;
        *allowed_bytes = shared_bytes;
    }
    Ok(())
}
