//! Deploys of components.

use crate::client::{Client, UploadReader};
use crate::output::OutputSettings;
use anyhow::Result;
use std::path::Path;
use weir_types::api::{Deployed, MANIFEST_HEADER};
use weir_types::{ContentHash, FunctionManifest, Name};

/// Component with its name and manifest.
pub(crate) struct ComponentUpload<'a> {
    /// Name of the function.
    pub(crate) name: &'a Name,
    pub(crate) component: Component<'a>,
    /// Grants and limits.
    pub(crate) manifest: &'a FunctionManifest,
    /// Reject imports that would be linked as denied.
    pub(crate) strict: bool,
    /// Which calls the version gets, as parts of the query; empty: all.
    pub(crate) role: Vec<(&'static str, String)>,
}

/// A component to deploy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Component<'a> {
    /// A file on this machine.
    File(&'a Path),
    /// The component with this hash, which a version of the function has.
    Stored(ContentHash),
}

impl ComponentUpload<'_> {
    /// Deploys the component, and returns when it can be called.
    pub(crate) fn send(&self, client: &Client, output: OutputSettings) -> Result<Deployed> {
        self.request(client, output, false)
    }

    /// The version that a deploy would activate or create.
    pub(crate) fn dry_run(&self, client: &Client) -> Result<Deployed> {
        self.request(client, OutputSettings { json: false, quiet: true }, true)
    }

    fn request(&self, client: &Client, output: OutputSettings, dry_run: bool) -> Result<Deployed> {
        let Self { name, component, manifest, strict, role } = self;
        let mut query = form_urlencoded::Serializer::new(String::new());
        if *strict {
            query.append_pair("strict", "true");
        }
        if dry_run {
            query.append_pair("dry_run", "true");
        }
        if let Component::Stored(digest) = component {
            query.append_pair("digest", &digest.to_string());
        }
        query.extend_pairs(role);
        let query = query.finish();
        let path = format!("/v1/functions/{name}{}{query}", if query.is_empty() { "" } else { "?" });
        let what = format!("deploy {name}");
        let headers = [(MANIFEST_HEADER, ascii_json(manifest)?)];
        match component {
            Component::Stored(_) => client.put_empty(&path, &what, &headers),
            Component::File(file) => {
                let mut upload = UploadReader::open(file, output, &format!("sending {name}"), "compiling")?;
                client.put(&path, &what, &headers, &mut upload)
            }
        }
    }
}

/// JSON for a header: non-ASCII characters are escaped.
fn ascii_json(manifest: &FunctionManifest) -> Result<String> {
    let json = serde_json::to_string(manifest)?;
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
        }
    }
    Ok(ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_survives_the_header_encoding() {
        let mut manifest = FunctionManifest::default();
        manifest.env.insert("GREETING".into(), "grüezi \u{1f600}\n\u{7f}".into());
        let header = ascii_json(&manifest).unwrap();
        assert!(header.is_ascii());
        assert_eq!(serde_json::from_str::<FunctionManifest>(&header).unwrap(), manifest);
    }
}
