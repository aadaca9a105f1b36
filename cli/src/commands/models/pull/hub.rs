//! Repositories of the Hugging Face hub.

use super::download::{Downloader, RemoteFile, percent_encoded};
use crate::error::Problem;
use anyhow::Result;
use serde::Deserialize;
use std::str::FromStr;

/// The hub, unless HF_ENDPOINT names another.
const ENDPOINT: &str = "https://huggingface.co";
/// Files that are pushed if a repository has several ONNX files and the user names none.
const PREFERRED: [&str; 2] = ["onnx/model.onnx", "model.onnx"];
/// Files that an error lists.
const LISTED_MAX: usize = 20;

/// A file of a repository: `OWNER/NAME[/FILE][@REVISION]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubFile {
    owner: String,
    name: String,
    /// `None`: the repository's only or preferred model.
    file: Option<String>,
    /// Branch, tag or commit.
    revision: String,
}

impl FromStr for HubFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, revision) = text.rsplit_once('@').unwrap_or((text, "main"));
        let mut parts = path.splitn(3, '/');
        let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        match (part(), part(), part()) {
            (Some(owner), Some(name), file) if !revision.is_empty() => {
                Ok(Self { owner, name, file, revision: revision.to_owned() })
            }
            _ => Err("a model of the hub is hf://OWNER/NAME[/FILE][@REVISION]".into()),
        }
    }
}

impl HubFile {
    /// The repository's name, without its owner.
    pub(super) fn repository(&self) -> &str {
        &self.name
    }
}

/// Description of a repository at a revision.
#[derive(Debug, Deserialize)]
struct Repository {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

/// Finds a file of the hub. All files of a model come from the same commit.
pub(super) fn resolve(wanted: &HubFile, downloader: &Downloader) -> Result<RemoteFile> {
    let given = |name: &str| std::env::var(name).ok().filter(|set| !set.is_empty());
    let endpoint = given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/');
    let token = given("HF_TOKEN");
    let HubFile { owner, name, revision, .. } = wanted;
    let [owner, name] = [owner, name].map(|part| percent_encoded(part, false));
    let revision = percent_encoded(revision, false);
    let about = RemoteFile {
        url: format!("{endpoint}/api/models/{owner}/{name}/revision/{revision}"),
        token,
        sha256: None,
        is_on_hub: true,
    };
    about.check_transport()?;
    let repository: Repository = downloader.read_json(&about)?;
    let file = choose(wanted, &repository)?;
    downloader.note(format!("{}/{} is at commit {}", wanted.owner, wanted.name, repository.sha));
    let commit = percent_encoded(&repository.sha, false);
    let file = percent_encoded(file, true);
    let url = format!("{endpoint}/{owner}/{name}/resolve/{commit}/{file}");
    downloader.with_known_hash(RemoteFile { url, ..about })
}

/// Chooses the file to push.
fn choose<'a>(wanted: &'a HubFile, repository: &'a Repository) -> Result<&'a str> {
    let names = || repository.siblings.iter().map(|file| file.rfilename.as_str());
    let models: Vec<&str> = names().filter(|name| name.ends_with(".onnx")).collect();
    let hint = match models[..] {
        [] => "it may be in another repository or branch; `optimum-cli export onnx` makes ONNX files from PyTorch models".to_owned(),
        _ => format!("its ONNX files are: {}", models[..models.len().min(LISTED_MAX)].join(", ")),
    };
    let repository_name = format!("{}/{}", wanted.owner, wanted.name);
    let chosen = match (&wanted.file, &models[..]) {
        (Some(file), _) => names().find(|name| name == file),
        (None, [only]) => Some(*only),
        (None, _) => PREFERRED.into_iter().find(|preferred| models.contains(preferred)),
    };
    chosen.ok_or_else(|| {
        let text = match &wanted.file {
            Some(file) => format!("{repository_name} has no file {file}"),
            None if models.is_empty() => format!("{repository_name} has no ONNX file"),
            None => format!("{repository_name} has several ONNX files; name one after it"),
        };
        Problem::new(text).hint(hint).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(wanted: &str, files: &[&str]) -> Result<String, String> {
        let siblings = files.iter().map(|name| Sibling { rfilename: (*name).to_owned() }).collect();
        let repository = Repository { sha: "0".into(), siblings };
        let wanted = wanted.parse().unwrap();
        choose(&wanted, &repository).map(str::to_owned).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn only_or_preferred_model_is_chosen() {
        assert_eq!(chosen("a/b", &["README.md", "net.onnx"]).as_deref(), Ok("net.onnx"));
        let several = ["onnx/model.onnx", "onnx/model_fp16.onnx", "model.safetensors"];
        assert_eq!(chosen("a/b", &several).as_deref(), Ok("onnx/model.onnx"));
        assert_eq!(chosen("a/b/onnx/model_fp16.onnx", &several).as_deref(), Ok("onnx/model_fp16.onnx"));
        assert!(chosen("a/b", &["x.onnx", "y.onnx"]).unwrap_err().contains("several ONNX files"));
        assert!(chosen("a/b", &["model.safetensors"]).unwrap_err().contains("no ONNX file"));
        assert!(chosen("a/b/c.onnx", &several).unwrap_err().contains("no file c.onnx"));
    }

    #[test]
    fn revision_follows_the_last_at_sign() {
        let file: HubFile = "owner/name/onnx/model.onnx@v1.0".parse().unwrap();
        assert_eq!((file.file.as_deref(), file.revision.as_str()), (Some("onnx/model.onnx"), "v1.0"));
        let file: HubFile = "owner/name".parse().unwrap();
        assert_eq!((file.file, file.revision.as_str()), (None, "main"));
        assert!("owner/name@".parse::<HubFile>().is_err());
    }
}
