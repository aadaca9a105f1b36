//! Builds for a watch. `watch_build` of weir.toml makes a component that most edits leave as it is,
//! and a file with the project's modules. The component imports them from an object, so an edit
//! needs neither a new component nor its compilation on the node.

use super::{BuildResult, BuildStop, Project, check_component};
use crate::client::{Client, UploadReader};
use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use std::path::PathBuf;
use weir_types::api::Object;
use weir_types::{FunctionManifest, Name, NamePattern};

/// End of the name of the object with a function's modules.
const OBJECT_SUFFIX: &str = ".modules";
/// Time to live of that object. A function that is still called after it needs a deployment
/// without a watch.
const OBJECT_TTL_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// Modules of a function, apart from its component.
#[derive(Debug)]
pub(crate) struct Modules {
    object: Name,
    file: PathBuf,
}

impl Project {
    /// Builds the function `name` for a watch: by `watch_build`, if the project has it.
    pub(crate) fn build_watched(
        &self,
        name: &Name,
        output: OutputSettings,
        stop: &BuildStop,
    ) -> Result<(BuildResult, Option<Modules>)> {
        let Some(command) = &self.function.watch_build else {
            return Ok((self.build(false, output, Some(stop))?, None));
        };
        let component = self.folder.join(&self.function.component).with_extension("watch.wasm");
        let file = component.with_extension("modules");
        let object = Name::new(&format!("{name}{OBJECT_SUFFIX}")).map_err(|error| {
            Problem::usage(format!("the modules of {name} cannot be an object {name}{OBJECT_SUFFIX}"))
                .because(error)
                .hint("choose a shorter name, or delete `watch_build` in weir.toml")
        })?;
        component.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let variables = [
            ("WEIR_COMPONENT", component.as_os_str()),
            ("WEIR_MODULES", file.as_os_str()),
            ("WEIR_OBJECT", object.as_str().as_ref()),
        ];
        super::build::run(command, &variables, &self.folder, output, Some(stop))?;
        let bytes = check_component(&component)
            .map_err(|problem| problem.hint("`watch_build` in weir.toml has to make $WEIR_COMPONENT"))?;
        let built = BuildResult { component, bytes, bytes_before_snapshot: None, warnings: Vec::new() };
        Ok((built, Some(Modules { object, file })))
    }
}

impl Modules {
    /// Stores the modules where the component finds them.
    pub(crate) fn send(&self, client: &Client, output: OutputSettings) -> Result<()> {
        let mut upload = UploadReader::open(
            &self.file,
            output,
            &format!("sending {}", self.object),
            "storing the modules",
        )?;
        let path = format!("/v1/objects/{}?ttl_ms={OBJECT_TTL_MS}", self.object);
        let what = format!("store the modules as the object {}", self.object);
        client.put::<Object>(&path, &what, &[], &mut upload).map(drop)
    }

    /// Lets the function read its modules. Its responses are not cached, because the modules change
    /// within a version.
    pub(crate) fn grant(&self, manifest: &mut FunctionManifest) -> Result<()> {
        manifest.objects.read.push(NamePattern::try_from(self.object.to_string())?);
        manifest.cache_ttl_ms = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ConfigFile;

    const QUIET: OutputSettings = OutputSettings { json: false, quiet: true };

    #[test]
    fn watch_build_makes_a_component_and_modules_beside_those_of_the_build() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("weir.toml");
        let build =
            r#"printf '\0asm\015\0\001\0' > "$WEIR_COMPONENT" && printf %s "$WEIR_OBJECT" > "$WEIR_MODULES""#;
        let text = format!(
            "[function]\nname = \"f\"\ncomponent = \"out/f.wasm\"\ncache_ttl_ms = 9\nwatch_build = '''{build}'''\n"
        );
        std::fs::write(&config, text).unwrap();
        let project = Project::from_config(&ConfigFile::read(&config).unwrap()).unwrap();
        let name = Name::new("g").unwrap();
        let (built, modules) = project.build_watched(&name, QUIET, &BuildStop::default()).unwrap();
        assert_eq!(built.component, folder.path().join("out/f.watch.wasm"));
        let modules = modules.unwrap();
        assert_eq!(std::fs::read_to_string(&modules.file).unwrap(), "g.modules");

        let mut manifest = project.manifest();
        modules.grant(&mut manifest).unwrap();
        assert!(manifest.objects.read[0].covers(&modules.object) && manifest.cache_ttl_ms.is_none());
        let long = Name::new(&"n".repeat(60)).unwrap();
        let error = project.build_watched(&long, QUIET, &BuildStop::default()).unwrap_err();
        assert!(crate::error::text(&error).contains("shorter name"), "{error:#}");
    }
}
