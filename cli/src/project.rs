//! Function projects: folders of a `weir.toml` with a `[function]`.

mod build;
mod component;
mod deploy;
mod snapshot;
mod watched;

pub(crate) use build::BuildStop;
pub(crate) use component::check_component;
pub(crate) use deploy::{describe, not_visible, old_versions};

use crate::error::Problem;
use crate::output::{OutputSettings, size};
use crate::settings::{ConfigFile, FunctionProject};
use anyhow::Result;
use serde::Serialize;
use std::path::{Path, PathBuf};
use weir_types::FunctionManifest;

/// Function project.
#[derive(Debug, Clone)]
pub(crate) struct Project {
    /// Folder of the `weir.toml`.
    pub(crate) folder: PathBuf,
    /// The `[function]` settings.
    pub(crate) function: FunctionProject,
}

/// Result of a build.
#[derive(Debug, Serialize)]
pub(crate) struct BuildResult {
    /// The component to deploy.
    pub(crate) component: PathBuf,
    /// Length of the component.
    pub(crate) bytes: u64,
    /// Length before the pre-initialisation; `None` without one.
    pub(crate) bytes_before_snapshot: Option<u64>,
    /// Warnings for the author.
    pub(crate) warnings: Vec<String>,
}

impl Project {
    /// Returns the project in `file`, if it has a `[function]`.
    pub(crate) fn from_config(file: &ConfigFile) -> Option<Self> {
        Some(Self { folder: file.folder.clone(), function: file.function.clone()? })
    }

    /// The manifest in `weir.toml`.
    pub(crate) fn manifest(&self) -> FunctionManifest {
        self.function.manifest()
    }

    /// Builds the component. Pre-initialises it if the project or the caller asks for that.
    pub(crate) fn build(
        &self,
        snapshot: bool,
        output: OutputSettings,
        stop: Option<&BuildStop>,
    ) -> Result<BuildResult> {
        let component = self.folder.join(&self.function.component);
        if let Some(command) = &self.function.build {
            // Some compilers do not create the output folder.
            component.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            build::run(command, &[], &self.folder, output, stop)?;
            self.finish(&component)?;
        }
        let bytes = check_component(&component).map_err(|problem| match self.function.build {
            Some(_) => problem
                .hint("the build succeeded; check that `component` in weir.toml is the path of its output"),
            None => problem.hint("build it first, or give weir.toml a `build` command"),
        })?;
        let built = BuildResult { component, bytes, bytes_before_snapshot: None, warnings: Vec::new() };
        if snapshot || self.function.snapshot { self.pre_initialise(&built, output) } else { Ok(built) }
    }

    /// Converts a core module into a component, if the project names a `world`.
    fn finish(&self, component: &Path) -> Result<()> {
        let Some(world) = &self.function.world else { return Ok(()) };
        let wasm = std::fs::read(component).map_err(|error| {
            Problem::new(format!("the build did not create {}", component.display())).because(error)
        })?;
        let made = weir_provision::component_of(&wasm, &self.folder.join("wit"), world).map_err(|error| {
            Problem::new(format!("cannot make a component of {}: {error}", component.display()))
                .hint("`world` in weir.toml names the world in wit/ whose imports and exports the module has")
        })?;
        if let Some(made) = made {
            crate::files::write_whole(component, &made)?;
        }
        Ok(())
    }

    /// The component of the last build, without building.
    pub(crate) fn built(&self) -> Result<PathBuf> {
        let component = self.folder.join(&self.function.component);
        let component =
            if self.function.snapshot { component.with_extension("snapshot.wasm") } else { component };
        check_component(&component).map_err(|problem| problem.hint("`weir build` makes it"))?;
        Ok(component)
    }

    fn pre_initialise(&self, built: &BuildResult, output: OutputSettings) -> Result<BuildResult> {
        let spinner = output.spinner("pre-initialising");
        let wasm = std::fs::read(&built.component)?;
        let init = self.function.snapshot_init.as_deref().unwrap_or(snapshot::INIT_DEFAULT);
        let snapshot = snapshot::take(&wasm, init)?;
        let component = built.component.with_extension("snapshot.wasm");
        crate::files::write_whole(&component, &snapshot.wasm)?;
        spinner.finish_and_clear();
        let bytes = snapshot.wasm.len() as u64;
        Ok(BuildResult {
            component,
            bytes,
            bytes_before_snapshot: Some(built.bytes),
            warnings: snapshot.warnings,
        })
    }
}

impl BuildResult {
    /// Human-readable form.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("built {} ({}", self.component.display(), size(self.bytes));
        if let Some(before) = self.bytes_before_snapshot {
            text.push_str(&format!(", {} before it was pre-initialised", size(before)));
        }
        text.push_str(")\n");
        self.warnings.iter().for_each(|warning| text.push_str(&format!("  warning: {warning}\n")));
        text
    }
}
