//! `weir new`.

use crate::commands::Context;
use crate::error::Problem;
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use include_dir::{Dir, DirEntry, include_dir};
use minijinja::{Environment, UndefinedBehavior, context};
use std::path::{Path, PathBuf};
use weir_types::Name;

static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../guest-sdk/templates");

/// Make a function's project from a template
///
/// Examples:
///   weir new hello                       # answers HTTP requests
///   weir new scale --kind tensor         # maps tensors to tensors, and can be called like a model
///   weir new hello --dir services/hello
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct NewArgs {
    /// What the function is called, and its folder unless --dir says otherwise
    name: Name,
    /// The language
    #[arg(long, short, default_value = "rust")]
    template: String,
    /// What kind of function it is
    #[arg(long, value_enum, default_value = "http")]
    kind: Kind,
    /// The folder to make
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Answers HTTP requests
    Http,
    /// Maps named tensors to named tensors
    Tensor,
}

pub(crate) fn run(args: &NewArgs, context: &Context) -> Result<()> {
    let kind = args.kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let template = template(&args.template, &kind)?;
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from(args.name.as_str()));
    if std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) || folder.is_file() {
        let problem = Problem::usage(format!("{} exists already", folder.display()));
        return Err(problem.hint("choose another name, or another folder with --dir").into());
    }
    let files = render(template, &args.name)?;
    write(&folder, &files).with_context(|| format!("cannot make {}", folder.display()))?;
    let names: Vec<_> = files.iter().map(|(path, _)| path).collect();
    let shown = serde_json::json!({ "folder": folder, "files": names });
    context.output.result(&shown, |_| {
        let list: String = names.iter().map(|name| format!("  {}\n", name.display())).collect();
        let cd = folder.display();
        format!("made {cd} with\n{list}\nnext:\n  cd {cd}\n  weir up --watch      # a node, this function on it, and again after every change\n")
    })
}

fn template(language: &str, kind: &str) -> Result<&'static Dir<'static>> {
    let wanted = format!("{language}-{kind}");
    TEMPLATES.get_dir(&wanted).ok_or_else(|| {
        let mut known: Vec<_> = TEMPLATES.dirs().map(|dir| dir.path().display().to_string()).collect();
        known.sort();
        Problem::usage(format!("there is no template {wanted}"))
            .hint(format!(
                "there are {}; functions in other languages can be deployed too: `weir deploy NAME FILE.wasm` takes any component",
                known.join(", ")
            ))
            .into()
    })
}

/// The files of a template, by their paths in the project.
fn render(template: &Dir<'_>, name: &Name) -> Result<Vec<(PathBuf, String)>> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_keep_trailing_newline(true);
    let crate_name = name.as_str().replace('.', "-");
    let values = context! {
        name => name.as_str(),
        crate_name => crate_name,
        module_name => crate_name.replace('-', "_"),
        version => env!("CARGO_PKG_VERSION"),
    };
    let mut files = Vec::new();
    collect(template, &mut |path, text| {
        let inside = path.strip_prefix(template.path())?;
        let text = environment
            .render_str(text, &values)
            .with_context(|| format!("in the template {}", path.display()))?;
        files.push((inside.to_owned(), text));
        Ok(())
    })?;
    files.sort();
    Ok(files)
}

fn collect(dir: &Dir<'_>, take: &mut dyn FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    for entry in dir.entries() {
        match entry {
            DirEntry::Dir(inner) => collect(inner, take)?,
            DirEntry::File(file) => {
                let text =
                    file.contents_utf8().with_context(|| format!("{} is no text", file.path().display()))?;
                take(file.path(), text)?;
            }
        }
    }
    Ok(())
}

/// Make the folder beside its place and then move it there, so that nobody is left with half a project.
fn write(folder: &Path, files: &[(PathBuf, String)]) -> Result<()> {
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(above)?;
    let scratch = tempfile::Builder::new().prefix(".weir-new-").tempdir_in(above)?;
    let made = scratch.path().join("project");
    for (path, text) in files {
        let path = made.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&made))?;
        std::fs::write(path, text)?;
    }
    std::fs::rename(&made, folder)?;
    Ok(())
}
