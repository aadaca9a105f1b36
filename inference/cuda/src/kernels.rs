//! Kernels of a device, loaded in advance or on first use.

mod modules;

use crate::ahead::AheadThread;
pub use modules::{LoadedModule, Modules};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use weir_device::cuda::{Context, CudaError, Function};
use weir_kernels::Kernel;

/// Shared memory per block that needs no opt-in, in bytes.
const SHARED_BYTES: u32 = 48 << 10;

/// Requested functions and their modules.
pub struct Kernels {
    modules: Arc<Modules>,
    /// Functions with their shared memory limits. The lock is held for single driver calls, never
    /// while a module is loaded.
    functions: Mutex<HashMap<Kernel, (Function, u32)>>,
    ahead: Option<AheadThread>,
}

impl Kernels {
    pub(crate) fn new(context: &Arc<Context>, compute_capability: u32) -> Self {
        let modules = Arc::new(Modules::new(context, compute_capability));
        Self { modules, functions: Mutex::default(), ahead: None }
    }

    /// Starts loading all modules in the background, up to the first that fails to load.
    pub(crate) fn load_ahead(&mut self) {
        let modules = self.modules.clone();
        let mut all = modules.all().collect::<Vec<_>>().into_iter();
        // The first use of a module reports its failure.
        let load = move || all.next().is_some_and(|module| modules.get(module).is_ok());
        self.ahead = AheadThread::start("weir-kernels", load);
    }

    /// Waits for the end of [`Self::load_ahead`].
    #[cfg(test)]
    pub(crate) fn wait_until_loaded(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.join();
        }
    }

    /// Returns the function of a kernel, with this limit of shared memory. Waits only for the
    /// module of the kernel.
    pub(crate) fn function(&self, kernel: &Kernel, shared_bytes: u32) -> Result<Function, CudaError> {
        if let Some(found) = self.known(kernel, shared_bytes) {
            return found;
        }
        let function = self.modules.get(kernel.module)?.function(&kernel.name)?;
        self.functions().entry(kernel.clone()).or_insert((function.clone(), SHARED_BYTES));
        self.known(kernel, shared_bytes).unwrap_or(Ok(function))
    }

    /// Returns a function that was requested before, with its limit raised to `shared_bytes`.
    fn known(&self, kernel: &Kernel, shared_bytes: u32) -> Option<Result<Function, CudaError>> {
        let mut functions = self.functions();
        let (function, allowed_bytes) = functions.get_mut(kernel)?;
        Some(allow(function, allowed_bytes, shared_bytes).map(|()| function.clone()))
    }

    fn functions(&self) -> MutexGuard<'_, HashMap<Kernel, (Function, u32)>> {
        self.functions.lock()
    }

    /// Returns the modules, for measuring their load times.
    pub fn modules(&self) -> &Modules {
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
