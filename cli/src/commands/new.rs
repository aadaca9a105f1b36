//! `weir new`.

mod templates;

use crate::commands::CommandContext;
use crate::error::Problem;
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use minijinja::{Environment, UndefinedBehavior, context};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use templates::Template;
use weir_types::Name;

/// Template folders that are copied without filling in placeholders: the WIT files and the SDK.
const AS_THEY_ARE: [&str; 2] = ["wit", "sdk"];

/// Alternative names of languages.
const ALIASES: [(&str, &str); 5] =
    [("rs", "rust"), ("py", "python"), ("typescript", "ts"), ("javascript", "js"), ("golang", "go")];

/// Create a function project from a template
///
/// Examples:
///   weir new hello                       # HTTP function in Rust
///   weir new hello -t python             # the same in Python; also ts, js and c
///   weir new hello -t go                 # the same in Go (experimental)
///   weir new scale --kind tensor         # tensor function, callable like a model
///   weir new hello --dir services/hello
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct NewArgs {
    /// Name of the function, and of its folder unless --dir is given
    name: Name,
    /// Language: rust, python, ts, js, c, or go (experimental)
    #[arg(long, short, default_value = "rust")]
    template: String,
    /// Kind of the function
    #[arg(long, value_enum, default_value = "http")]
    kind: TemplateKind,
    /// Folder to create
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TemplateKind {
    /// Answers HTTP requests
    Http,
    /// Maps named tensors to named tensors
    Tensor,
}

pub(crate) fn run(args: &NewArgs, context: &CommandContext) -> Result<()> {
    let kind = args.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let template = template(&args.template, &kind)?;
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from(args.name.as_str()));
    if std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) || folder.is_file() {
        let problem = Problem::new(format!("{} exists already", folder.display()));
        return Err(problem.hint("choose another name, or another folder with --dir").into());
    }
    let files = render(template, &args.name)?;
    write(&folder, &files).with_context(|| format!("cannot make {}", folder.display()))?;
    let names: Vec<_> = files.iter().map(|(path, _)| path).collect();
    let shown = serde_json::json!({ "folder": folder, "files": names });
    context.output.result(&shown, |_| {
        let own: BTreeSet<_> = names.iter().map(|name| own_or_folder(name)).collect();
        let list: String = own.iter().map(|name| format!("  {}\n", name.display())).collect();
        let cd = folder.display();
        format!("made {cd} with\n{list}\nnext:\n  cd {cd}\n  weir up --watch       # if no node runs yet: a node with this function\n  weir deploy --watch   # if a node runs: this function on it, and its log\nBoth deploy again after every change.\n")
    })
}

fn template(language: &str, kind: &str) -> Result<Template> {
    let language = ALIASES.iter().find(|(alias, _)| *alias == language).map_or(language, |(_, own)| own);
    let mut templates = templates::unpack()?;
    templates.remove(&format!("{language}-{kind}")).ok_or_else(|| {
        let known = templates.keys().filter_map(|name| name.strip_suffix(&format!("-{kind}")));
        let known: Vec<_> = known.collect();
        Problem::usage(format!("there is no template for {language}"))
            .hint(format!(
                "there are {}; functions in other languages can be deployed too: `weir deploy NAME FILE.wasm` takes any component",
                known.join(", ")
            ))
            .into()
    })
}

/// Renders a template. Returns the files with their paths in the project.
fn render(template: Template, name: &Name) -> Result<Vec<(PathBuf, String)>> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_keep_trailing_newline(true);
    let crate_name = crate_name(name);
    let values = context! {
        name => name.as_str(),
        crate_name => crate_name,
        module_name => crate_name.replace('-', "_"),
        version => env!("CARGO_PKG_VERSION"),
    };
    let render = |(path, text): (PathBuf, String)| {
        if path.components().any(|part| AS_THEY_ARE.iter().any(|folder| part.as_os_str() == *folder)) {
            return Ok((path, text));
        }
        let text = environment
            .render_str(&text, &values)
            .with_context(|| format!("in the template's {}", path.display()))?;
        Ok((path, text))
    };
    let mut files = template.into_iter().map(render).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Returns the file, or its top folder if the folder was copied unchanged.
fn own_or_folder(path: &Path) -> &Path {
    AS_THEY_ARE.iter().map(Path::new).find(|folder| path.starts_with(folder)).unwrap_or(path)
}

/// Name of the crate. Cargo allows no dots and requires a letter first.
fn crate_name(name: &Name) -> String {
    let plain = name.as_str().replace('.', "-");
    if plain.starts_with(|first: char| first.is_ascii_alphabetic()) { plain } else { format!("fn-{plain}") }
}

/// Creates the project in a temporary folder and moves it into place, so that an error leaves no
/// partial project.
fn write(folder: &Path, files: &[(PathBuf, String)]) -> std::io::Result<()> {
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(above)?;
    let scratch = tempfile::Builder::new().prefix(".weir-new-").tempdir_in(above)?;
    let made = scratch.path().join("project");
    for (path, text) in files {
        let path = made.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&made))?;
        std::fs::write(path, text)?;
    }
    if !folder.is_dir() {
        return std::fs::rename(&made, folder);
    }
    // The folder exists, is empty, and may be a shell's current folder, so keep it.
    for entry in std::fs::read_dir(&made)? {
        let entry = entry?;
        std::fs::rename(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ConfigFile;

    #[test]
    fn every_template_renders_a_valid_project() {
        let name = Name::new("0-my.fn_1").unwrap();
        let templates = templates::unpack().unwrap();
        assert!(templates.len() >= 12);
        for (language, template) in templates {
            let top = tempfile::tempdir().unwrap();
            let folder = top.path().join("made");
            write(&folder, &render(template, &name).unwrap()).unwrap();
            let function = ConfigFile::read(&folder.join("weir.toml")).unwrap().function.unwrap();
            assert_eq!(function.name, name, "{language}");
            let made = |file: &str| std::fs::read_to_string(folder.join(file));
            if let Ok(package) = made("Cargo.toml") {
                let package: toml::Table = toml::from_str(&package).unwrap();
                let crate_name = package["package"]["name"].as_str().unwrap();
                // Cargo requires a letter first, and names the output file after the crate.
                assert!(crate_name.starts_with(|c: char| c.is_ascii_alphabetic()), "{crate_name}");
                assert_eq!(
                    function.component.file_stem().unwrap().to_str(),
                    Some(&*crate_name.replace('-', "_"))
                );
            }
            if let Ok(package) = made("package.json") {
                serde_json::from_str::<serde_json::Value>(&package).unwrap();
            }
            assert!(made(".gitignore").unwrap().contains("/weir-data"));
        }
    }

    #[test]
    fn unknown_template_error_lists_the_templates() {
        let error = template("cobol", "http").map(drop).unwrap_err();
        assert!(crate::error::text(&error).contains("there are c, go, js, python, rust, ts;"), "{error:#}");
        assert!(
            template("typescript", "http").unwrap().iter().any(|(path, _)| path.ends_with("tsconfig.json"))
        );
    }

    #[test]
    fn project_can_be_created_in_an_existing_empty_folder() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[("src/lib.rs".into(), "code".to_owned())]).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("src/lib.rs")).unwrap(), "code");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
