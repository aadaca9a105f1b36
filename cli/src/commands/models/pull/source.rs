//! Names of models on other servers.

use super::download::{Downloader, RemoteFile};
use super::hub::{self, HubFile};
use crate::error::Problem;
use anyhow::Result;
use std::str::FromStr;
use weir_types::Name;

/// A model on another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModelSource {
    /// The address of a file.
    Url(String),
    /// A file of a hub's repository.
    Hub(HubFile),
}

impl FromStr for ModelSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("hf://") {
            return rest.parse().map(Self::Hub);
        }
        let host = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        match host {
            Some(host) if !host.starts_with('/') && !host.is_empty() => Ok(Self::Url(text.to_owned())),
            _ => Err("a source is https://HOST/PATH or hf://OWNER/NAME[/FILE][@REVISION]; `weir models push` takes local files".into()),
        }
    }
}

impl ModelSource {
    /// The name of the model if the user gives none: the repository's, or the file's.
    pub(super) fn model_name(&self) -> Result<Name> {
        let base = match self {
            Self::Hub(file) => file.repository(),
            Self::Url(url) => {
                let path = url.split(['?', '#']).next().unwrap_or_default();
                let file = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                file.split('.').next().unwrap_or_default()
            }
        };
        let letters =
            base.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        let name: String = letters.collect();
        Name::new(name.trim_matches('-')).map_err(|error| {
            let text = format!("{base:?} gives no name for the model");
            Problem::usage(text).because(error).hint("put a name after the source").into()
        })
    }

    /// Finds the file of the source.
    pub(super) fn resolve(&self, downloader: &Downloader) -> Result<RemoteFile> {
        match self {
            Self::Url(url) => {
                Ok(RemoteFile { url: url.clone(), token: None, sha256: None, is_on_hub: false })
            }
            Self::Hub(file) => hub::resolve(file, downloader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(source: &str) -> String {
        source.parse::<ModelSource>().unwrap().model_name().unwrap().to_string()
    }

    #[test]
    fn name_is_that_of_the_repository_or_file() {
        assert_eq!(name("hf://sentence-transformers/all-MiniLM-L6-v2/onnx/model.onnx"), "all-minilm-l6-v2");
        assert_eq!(name("https://example.com/models/ResNet_50.v1.onnx?download=true"), "resnet-50");
        assert_eq!(name("https://example.com/models/birds.tar.gz"), "birds");
        let unnamed = "https://example.com/".parse::<ModelSource>().unwrap().model_name();
        assert!(unnamed.is_ok() || unnamed.unwrap_err().to_string().contains("no name"));
    }

    #[test]
    fn local_files_and_other_schemes_are_refused() {
        for wrong in ["model.onnx", "ftp://example.com/a.onnx", "https://", "hf://owner", "hf:///a/b"] {
            assert!(wrong.parse::<ModelSource>().is_err(), "{wrong}");
        }
    }
}
