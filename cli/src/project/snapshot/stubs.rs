//! What a component imports beyond WASI, so that it can be instantiated: calling any of it ends the snapshot with a reason.

use wasmtime::bail;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, ResourceType};
use wasmtime_wasi_io::poll::DynPollable;

/// Define every import of `component` that is not WASI's.
pub(super) fn define<T: 'static>(linker: &mut Linker<T>, component: &Component) -> wasmtime::Result<()> {
    let engine = component.engine().clone();
    for (name, import) in component.component_type().imports(&engine) {
        if name.starts_with("wasi:") {
            continue;
        }
        match import.ty {
            ComponentItem::ComponentInstance(interface) => {
                let mut instance = linker.instance(name)?;
                for (item_name, item) in interface.exports(&engine) {
                    stub(&mut instance, item_name, &item.ty, name)?;
                }
            }
            item => stub(&mut linker.root(), name, &item, "the component's world")?,
        }
    }
    Ok(())
}

fn stub<T: 'static>(
    instance: &mut LinkerInstance<'_, T>,
    name: &str,
    item: &ComponentItem,
    interface: &str,
) -> wasmtime::Result<()> {
    match item {
        ComponentItem::ComponentFunc(_) => {
            let what = format!("{interface}#{name}");
            instance.func_new(name, move |_, _, _, _| {
                bail!("{what} can be called only while a request is handled")
            })
        }
        // The one type of WASI's that Weir's own interfaces mention must be WASI's.
        ComponentItem::Resource(_) if name == "pollable" => {
            instance.resource(name, ResourceType::host::<DynPollable>(), |_, _| Ok(()))
        }
        ComponentItem::Resource(_) => instance.resource(name, ResourceType::host::<()>(), |_, _| Ok(())),
        _ => Ok(()),
    }
}
