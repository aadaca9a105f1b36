//! Stubs for imports that initialisation code must not call. They make the component instantiable;
//! calling one fails the snapshot with a reason.

use wasmtime::bail;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, ResourceType};
use wasmtime_wasi::p2::bindings::filesystem::types::Descriptor;
use wasmtime_wasi_io::poll::DynPollable;
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream};

/// WASI interfaces that [`super::host::linker`] defines. Other interfaces reach outside the
/// component, and their results must not end up in a snapshot.
const LINKED: [&str; 5] =
    ["wasi:io/", "wasi:clocks/", "wasi:random/", "wasi:cli/", "wasi:filesystem/preopens"];

/// Defines a stub for every import of `component` outside [`LINKED`].
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
            // Interfaces that share a resource type must use the linked type.
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
