//! Builds and deploys a project repeatedly.

use super::follow::LogFollower;
use crate::client::Client;
use crate::commands::deploy::GrantArgs;
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::project::{BuildStop, Project, describe};
use crate::settings::ConfigFile;
use crate::uploads::{Component, ComponentUpload};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Instant;
use weir_types::Name;

/// Builds and deploys a project repeatedly.
pub(crate) struct Deployer {
    /// The project's `weir.toml`, read again each time because it may change.
    pub(crate) file: PathBuf,
    /// Name of the function; `None` for the name in `weir.toml`.
    pub(crate) name: Option<Name>,
    /// Grants in addition to those in `weir.toml`.
    pub(crate) grants: GrantArgs,
    /// Reject imports that would be linked as denied.
    pub(crate) strict: bool,
    pub(crate) client: Client,
    pub(crate) output: OutputSettings,
    /// Shows the function's log from its first deployment on.
    pub(crate) follower: Option<LogFollower>,
}

impl Deployer {
    /// Builds, deploys and reports the result. A failure is only reported: the next change may fix
    /// it.
    pub(super) fn deploy(&self, watched: bool, stop: &BuildStop) {
        if let Err(error) = self.try_deploy(watched, stop)
            && !stop.is_stopped()
        {
            let _ = crate::error::report(&error, self.output.json);
        }
    }

    fn try_deploy(&self, watched: bool, stop: &BuildStop) -> Result<()> {
        let began = Instant::now();
        let project = Project::from_config(&ConfigFile::read(&self.file)?)
            .ok_or_else(|| Problem::usage(format!("{} no longer has a [function]", self.file.display())))?;
        let name = self.name.as_ref().unwrap_or(&project.function.name);
        let (built, modules) = if watched {
            project.build_watched(name, self.output, stop)?
        } else {
            (project.build(false, self.output, Some(stop))?, None)
        };
        let mut manifest = self.grants.add_to(project.manifest())?;
        if let Some(modules) = &modules {
            // First, because the component cannot answer without them.
            modules.send(&self.client, self.output)?;
            modules.grant(&mut manifest)?;
        } else {
            self.output.note(built.text().trim_end());
        }
        let deployment = ComponentUpload {
            name,
            component: Component::File(&built.component),
            manifest: &manifest,
            strict: self.strict,
            role: Vec::new(),
        };
        let deployed = deployment.send(&self.client, self.output)?;
        if let Some(follower) = &self.follower {
            follower.start(name.clone());
        }
        self.output.result(&deployed, |deployed| {
            if modules.is_some() && !deployed.created {
                let function = &deployed.function;
                let took = began.elapsed().as_secs_f64();
                return format!(
                    "replaced the modules of {} version {} in {took:.1} s\n",
                    function.name, function.version
                );
            }
            describe(deployed, &self.client)
        })
    }
}
