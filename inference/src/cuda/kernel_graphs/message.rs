//! What a node and a worker say to each other, over a socket: lengths, and JSON. Tensors lie in a file in memory that both have open.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use weir_types::Shape;

/// The longest message: names, shapes and places of tensors.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// What a node asks of a worker. Each is answered, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Take hold of a device: the first.
    Open { driver: PathBuf, ordinal: u32, memory_bytes_max: u64 },
    /// Load a graph from the file that preparing it left, to be known by a number.
    Load { graph: u64, file: PathBuf },
    /// Let go of a graph.
    Forget { graph: u64 },
    /// Run a graph, and leave its outputs behind each other from a place on.
    Run { graph: u64, inputs: Vec<Part>, outputs: Vec<usize>, outputs_at: u64 },
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// It is done.
    Done,
    /// It has run, and has taken the device so long.
    Ran { outputs: Vec<Part>, device_time_ns: u64 },
    /// It cannot run with these inputs.
    Refused(String),
    /// There is not enough memory for it.
    OutOfMemory(String),
    /// It has failed, and others may work.
    Failed(String),
    /// The context is lost, and the worker with it.
    Lost(String),
}

/// A tensor in the memory that both have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) shape: Shape,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Send a message.
pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message).map_err(io::Error::other)?;
    let len = u32::try_from(json.len()).ok().filter(|len| *len <= MESSAGE_BYTES_MAX);
    let len = len.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut frame = Vec::with_capacity(json.len() + 4);
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&json);
    to.write_all(&frame)
}

/// Receive a message; none if the other side has closed.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    if !fill(from, &mut len)? {
        return Ok(None);
    }
    let len = u32::from_le_bytes(len);
    if len > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {len} bytes is too long")));
    }
    let mut json = vec![0; len as usize];
    if !fill(from, &mut json)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&json).map(Some).map_err(io::Error::other)
}

/// Read as much as there is room; false if there is nothing more at all.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let part = Part { shape: Shape::new(&[2, 3]).unwrap(), offset: 7, bytes: 24 };
        let run = Request::Run { graph: 1, inputs: vec![part], outputs: vec![0], outputs_at: 64 };
        let mut sent = Vec::new();
        send(&mut sent, &run).unwrap();
        send(&mut sent, &Request::Forget { graph: 1 }).unwrap();
        let mut rest = &sent[..];
        assert_eq!(receive(&mut rest).unwrap(), Some(run));
        assert_eq!(receive(&mut rest).unwrap(), Some(Request::Forget { graph: 1 }));
        assert_eq!(receive::<Request>(&mut rest).unwrap(), None);
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_an_error() {
        let mut sent = Vec::new();
        send(&mut sent, &Answer::Done).unwrap();
        for end in 1..sent.len() {
            assert!(receive::<Answer>(&mut &sent[..end]).is_err(), "{end}");
        }
        assert!(receive::<Answer>(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        assert!(send(&mut Vec::new(), &Answer::Failed("x".repeat(2 << 20))).is_err());
    }
}
