//! Reads memories and globals of an instance through the exports that the instrumentation added.

use super::host::SnapshotHost;
use wasmtime::component::{Instance, Lift, WasmList};
use wasmtime::{Result, Store, format_err};
use wasmtime_wizer::ComponentInstanceState;

/// Instance of an instrumented component.
pub(super) struct InstrumentedInstance<'a> {
    store: &'a mut Store<SnapshotHost>,
    instance: Instance,
    /// First error. The trait's methods cannot return errors.
    outcome: Result<()>,
}

impl<'a> InstrumentedInstance<'a> {
    pub(super) fn new(store: &'a mut Store<SnapshotHost>, instance: Instance) -> Self {
        Self { store, instance, outcome: Ok(()) }
    }

    /// Returns the first error, if a read failed.
    pub(super) fn outcome(self) -> Result<()> {
        self.outcome
    }

    async fn call<R: Lift + 'static>(&mut self, interface: &str, function: &str) -> Result<R> {
        let store = &mut *self.store;
        let instance = &self.instance;
        let missing = || format_err!("the instrumented component does not export {interface}#{function}");
        let (_, index) = instance.get_export(&mut *store, None, interface).ok_or_else(missing)?;
        let (_, index) = instance.get_export(&mut *store, Some(&index), function).ok_or_else(missing)?;
        let function = instance.get_typed_func::<(), (R,)>(&mut *store, index)?;
        Ok(function.call_async(&mut *store, ()).await?.0)
    }

    async fn number<R: Lift + Default + 'static>(&mut self, interface: &str, function: &str) -> R {
        let called = self.call(interface, function).await;
        called.unwrap_or_else(|error| self.failed(error))
    }

    fn failed<R: Default>(&mut self, error: wasmtime::Error) -> R {
        if self.outcome.is_ok() {
            self.outcome = Err(error);
        }
        R::default()
    }
}

impl ComponentInstanceState for InstrumentedInstance<'_> {
    async fn call_func_ret_list_u8(
        &mut self,
        interface: &str,
        function: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) {
        match self.call::<WasmList<u8>>(interface, function).await {
            Ok(list) => contents(list.as_le_slice(&*self.store)),
            Err(error) => {
                self.failed::<()>(error);
                contents(&[]);
            }
        }
    }

    async fn call_func_ret_s32(&mut self, interface: &str, function: &str) -> i32 {
        self.number(interface, function).await
    }

    async fn call_func_ret_s64(&mut self, interface: &str, function: &str) -> i64 {
        self.number(interface, function).await
    }

    async fn call_func_ret_f32(&mut self, interface: &str, function: &str) -> u32 {
        self.number::<f32>(interface, function).await.to_bits()
    }

    async fn call_func_ret_f64(&mut self, interface: &str, function: &str) -> u64 {
        self.number::<f64>(interface, function).await.to_bits()
    }
}
