//! What a component imports and start-up code must not call: it is there, so that the component can be instantiated, and calling any of it ends
//! the snapshot with a reason.

use wasmtime::bail;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, ResourceType};
use wasmtime_wasi::p2::bindings::filesystem::types::Descriptor;
use wasmtime_wasi_io::poll::DynPollable;
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream};

/// Of WASI, what may be called: [`super::host::linker`] has it. The rest is the world outside, which must not end up in a component.
const LINKED: [&str; 5] =
    ["wasi:io/", "wasi:clocks/", "wasi:random/", "wasi:cli/", "wasi:filesystem/preopens"];

/// Define every import of `component` that is not among those.
pub(super) fn define<T: 'static>(linker: &mut Linker<T>, component: &Component) -> wasmtime::Result<()> {
    let engine = component.engine().clone();
    for (name, import) in component.component_type().imports(&engine) {
        if LINKED.iter().any(|linked| name.starts_with(linked)) {
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
        ComponentItem::ComponentFunc(function) => {
            let why = format!("{interface}#{name} can be called only while a request is handled");
            if function.async_() {
                return instance.func_new_concurrent(name, move |_, _, _, _| {
                    let why = why.clone();
                    Box::pin(async move { bail!("{why}") })
                });
            }
            instance.func_new(name, move |_, _, _, _| bail!("{why}"))
        }
        ComponentItem::Resource(_) => {
            // Where interfaces mention each other's types, these must be those that are linked.
            let linked = match name {
                "pollable" => ResourceType::host::<DynPollable>(),
                "input-stream" => ResourceType::host::<DynInputStream>(),
                "output-stream" => ResourceType::host::<DynOutputStream>(),
                "error" => ResourceType::host::<wasmtime_wasi_io::streams::Error>(),
                "descriptor" => ResourceType::host::<Descriptor>(),
                _ => ResourceType::host::<()>(),
            };
            instance.resource(name, linked, |_, _| Ok(()))
        }
        _ => Ok(()),
    }
}
