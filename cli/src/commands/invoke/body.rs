//! Request bodies of `weir invoke`.

use crate::error::Problem;
use anyhow::Result;
use std::fs::File;
use std::io::{Cursor, Read as _, Stdin};
use ureq::SendBody;

/// Source of a request body.
pub(crate) enum BodySource {
    /// Text from the command line.
    Text(Cursor<Vec<u8>>),
    /// A file, with its length at opening.
    File(std::io::Take<File>, u64),
    /// Standard input, streamed.
    Stdin(Stdin),
}

impl BodySource {
    /// Parses the argument of `-d`.
    pub(crate) fn read(data: &str) -> Result<Self> {
        let Some(path) = data.strip_prefix('@') else { return Ok(Self::Text(Cursor::new(data.into()))) };
        if path == "-" {
            return Ok(Self::Stdin(std::io::stdin()));
        }
        let unreadable = |error| {
            Problem::new(format!("cannot read {path}"))
                .because(error)
                .hint("-d @FILE sends a file; to send a text that starts with '@', pipe it in with -d @-")
        };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Ok(Self::File(file.take(length), length))
    }

    /// Default content type, which a header can override.
    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Self::Text(text) if serde_json::from_slice::<serde::de::IgnoredAny>(text.get_ref()).is_ok() => {
                "application/json"
            }
            Self::Text(_) => "text/plain; charset=utf-8",
            Self::File(..) | Self::Stdin(_) => "application/octet-stream",
        }
    }

    /// Length of the body, if known in advance.
    pub(crate) fn length_bytes(&self) -> Option<u64> {
        match self {
            Self::Text(text) => Some(text.get_ref().len() as u64),
            Self::File(_, length) => Some(*length),
            Self::Stdin(_) => None,
        }
    }

    /// Reads the whole body.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = match self {
            Self::Text(text) => return Ok(text.into_inner()),
            Self::File(mut file, _) => file.read_to_end(&mut bytes),
            Self::Stdin(mut stdin) => stdin.read_to_end(&mut bytes),
        };
        read.map_err(|error| Problem::new("cannot read the body").because(error))?;
        Ok(bytes)
    }

    /// Converts the body for the HTTP client.
    pub(crate) fn send(self) -> SendBody<'static> {
        match self {
            Self::Text(text) => SendBody::from_owned_reader(text),
            Self::File(file, _) => SendBody::from_owned_reader(file),
            Self::Stdin(stdin) => SendBody::from_owned_reader(stdin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_follows_the_data() {
        let kind = |data: &str| BodySource::read(data).unwrap().content_type();
        assert_eq!(kind("{\"a\": 1}"), "application/json");
        assert_eq!(kind("hello"), "text/plain; charset=utf-8");
        assert_eq!(kind("@-"), "application/octet-stream");
        let file = tempfile::NamedTempFile::new().unwrap();
        let body = BodySource::read(&format!("@{}", file.path().display())).unwrap();
        assert_eq!((body.content_type(), body.length_bytes()), ("application/octet-stream", Some(0)));
        assert!(BodySource::read("@/no/such/file").is_err());
    }
}
