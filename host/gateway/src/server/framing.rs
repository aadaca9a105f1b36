//! Framing of HTTP/1 requests: where heads, bodies and chunks begin and end. Pure, without buffers
//! for more than one line.
//!
//! hyper accepts two kinds of heads that other servers and proxies may read differently, so that a
//! request hides in another: lines that end without a carriage return, and a body with both a
//! length and chunks. When hyper passes a request on, neither is visible any more. [`Framing`]
//! therefore reads the bytes before hyper does. It is stricter than hyper: it refuses everything
//! that it does not know.

/// Maximum number of bytes of a line that are examined. A longer line is refused if it declares the
/// length of a body.
const LINE_BYTES: usize = 256;
/// First line of HTTP/2 without a negotiation.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0";

/// Place in the stream of a connection.
#[derive(Debug)]
pub(super) struct Framing {
    place: FramingState,
    line: Line,
    head: Head,
    /// Whether no request line has been seen.
    is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// Before or in the request line.
    Request,
    Header,
    /// In a body, or in a chunk of one, with this many bytes left.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    /// Between a chunk and the line of the next one.
    ChunkEnd,
    Trailer,
    /// HTTP/2.
    Other,
}

/// The current line: its start, its length, and whether its last byte was a carriage return.
#[derive(Debug)]
struct Line {
    start: [u8; LINE_BYTES],
    len: usize,
    is_ending: bool,
}

/// Length and coding of the body, from the headers.
#[derive(Debug, Default)]
struct Head {
    length: Option<u64>,
    /// Whether the last coding is `chunked`, if there is one.
    chunks: Option<bool>,
}

/// The byte must not follow the bytes before it.
struct Refused;

impl Framing {
    pub(super) fn new() -> Self {
        let line = Line { start: [0; LINE_BYTES], len: 0, is_ending: false };
        Self { place: FramingState::Request, line, head: Head::default(), is_first: true }
    }

    /// Follows the next bytes. On an error, returns the offset of the first byte that is refused;
    /// nothing may follow it.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match &mut self.place {
                FramingState::Other => return Ok(()),
                FramingState::Body(left) | FramingState::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= taken as u64;
                    at += taken;
                    if *left == 0 {
                        self.place = match self.place {
                            FramingState::Chunk(_) => FramingState::ChunkEnd,
                            _ => FramingState::Request,
                        };
                    }
                }
                FramingState::Request
                | FramingState::Header
                | FramingState::ChunkSize
                | FramingState::ChunkEnd
                | FramingState::Trailer => {
                    for byte in rest {
                        match self.line.push(*byte) {
                            Ok(false) => at += 1,
                            Ok(true) => {
                                self.end_line().map_err(|Refused| at)?;
                                at += 1;
                                break;
                            }
                            Err(Refused) => return Err(at),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves on after a line.
    fn end_line(&mut self) -> Result<(), Refused> {
        let (line, len) = self.line.take();
        let line = line.get(..len.min(LINE_BYTES)).unwrap_or_default();
        self.place = match self.place {
            // Empty lines before a request are ignored.
            FramingState::Request if len == 0 => FramingState::Request,
            FramingState::Request if self.is_first && line == HTTP_2 => FramingState::Other,
            FramingState::Request => {
                self.is_first = false;
                FramingState::Header
            }
            FramingState::Header if len == 0 => std::mem::take(&mut self.head).body()?,
            FramingState::Header => {
                self.head.note(line, len)?;
                FramingState::Header
            }
            FramingState::ChunkSize => match chunk_size(line)? {
                0 => FramingState::Trailer,
                size => FramingState::Chunk(size),
            },
            FramingState::ChunkEnd if len == 0 => FramingState::ChunkSize,
            FramingState::Trailer if len == 0 => FramingState::Request,
            FramingState::Trailer => FramingState::Trailer,
            FramingState::ChunkEnd | FramingState::Body(_) | FramingState::Chunk(_) | FramingState::Other => {
                return Err(Refused);
            }
        };
        Ok(())
    }
}

impl Line {
    /// Adds a byte. Returns whether it ends the line.
    fn push(&mut self, byte: u8) -> Result<bool, Refused> {
        match (byte, self.is_ending) {
            (b'\n', true) => return Ok(true),
            (b'\n', false) | (_, true) => return Err(Refused),
            (b'\r', false) => self.is_ending = true,
            (byte, false) => {
                if let Some(place) = self.start.get_mut(self.len) {
                    *place = byte;
                }
                self.len = self.len.saturating_add(1);
            }
        }
        Ok(false)
    }

    /// The start of the line and its length. The next line begins.
    fn take(&mut self) -> ([u8; LINE_BYTES], usize) {
        self.is_ending = false;
        (self.start, std::mem::take(&mut self.len))
    }
}

impl Head {
    /// Records a header that starts with `line`.
    fn note(&mut self, line: &[u8], len: usize) -> Result<(), Refused> {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Ok(()) };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        if !is_length && !name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Ok(());
        }
        if len > LINE_BYTES {
            return Err(Refused);
        }
        if is_length {
            let length = number(value, 10).ok_or(Refused)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(Refused);
            }
        } else {
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
            self.chunks = Some(last.eq_ignore_ascii_case(b"chunked"));
        }
        if self.length.is_some() && self.chunks.is_some() { Err(Refused) } else { Ok(()) }
    }

    /// The place after the head.
    fn body(self) -> Result<FramingState, Refused> {
        match (self.length, self.chunks) {
            (None | Some(0), None) => Ok(FramingState::Request),
            (Some(length), None) => Ok(FramingState::Body(length)),
            (None, Some(true)) => Ok(FramingState::ChunkSize),
            (_, Some(_)) => Err(Refused),
        }
    }
}

/// Size of a chunk, from its line, which may have extensions.
fn chunk_size(line: &[u8]) -> Result<u64, Refused> {
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    number(size.trim_ascii_end(), 16).ok_or(Refused)
}

/// A number without a sign.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(is_digit))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// The offset of the byte that is refused, and whether the bytes end between two requests.
    fn followed(bytes: &[u8]) -> (Option<usize>, bool) {
        let mut framing = Framing::new();
        let refused = framing.follow(bytes).err();
        (refused, framing.place == FramingState::Request && framing.line.len == 0)
    }

    #[track_caller]
    fn accepted(text: &str) {
        assert_eq!(followed(text.as_bytes()), (None, true), "{text:?}");
    }

    /// The bytes before the one that is refused.
    #[track_caller]
    fn refused_after(text: &str) -> &str {
        let (refused, _) = followed(text.as_bytes());
        &text[..refused.unwrap_or_else(|| panic!("accepted: {text:?}"))]
    }

    fn post(headers: &str, body: &str) -> String {
        format!("POST /f HTTP/1.1\r\nhost: a\r\n{headers}\r\n{body}")
    }

    #[test]
    fn requests_follow_each_other() {
        let length = post("Content-Length: 11\r\n", "GET / \n\r\nab");
        let chunks = post(
            "transfer-encoding: gzip, Chunked\r\n",
            "a;name=\"v\"\r\n0123\n56789\r\n3 \r\nabc\r\n0\r\nx: y\r\n\r\n",
        );
        let empty = post("content-length: 0\r\n", "");
        accepted(&format!("{GET}{length}{chunks}\r\n{empty}{GET}"));
        accepted(&post("content-length: 3\r\ncontent-length: 3\r\n", "abc"));
    }

    #[test]
    fn lines_without_a_carriage_return_are_refused_where_they_end() {
        assert_eq!(refused_after("GET / HTTP/1.1\nhost: a\r\n\r\n"), "GET / HTTP/1.1");
        assert_eq!(refused_after("GET / HTTP/1.1\r\na: b\nhost: a\r\n\r\n"), "GET / HTTP/1.1\r\na: b");
        assert_eq!(refused_after("\nGET / HTTP/1.1\r\n"), "");
        assert_eq!(refused_after("GET / HTTP/1.1\r\na: b\rc\r\n"), "GET / HTTP/1.1\r\na: b\r");
        let head = post("transfer-encoding: chunked\r\n", "");
        assert_eq!(refused_after(&format!("{head}3\nabc")), format!("{head}3"));
        assert_eq!(refused_after(&format!("{head}0\r\nx: y\n\r\n")), format!("{head}0\r\nx: y"));
    }

    #[test]
    fn length_and_chunks_are_refused_in_either_order() {
        for headers in [
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nx: y\r\nCONTENT-LENGTH: 3\r\n",
        ] {
            assert!(refused_after(&post(headers, "")).ends_with('\r'), "before the end of the second");
        }
    }

    #[test]
    fn unclear_lengths_are_refused() {
        let long = format!("content-length: {}3\r\n", " ".repeat(LINE_BYTES));
        for headers in [
            "content-length: +3\r\n",
            "content-length: 3, 3\r\n",
            "content-length: \r\n",
            "content-length: 3\r\ncontent-length: 4\r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: chunked, gzip\r\n",
            &long,
        ] {
            refused_after(&post(headers, "abc"));
        }
        for body in ["x\r\n", "\r\n", "3\r\nabcd\r\n", "-1\r\n", "fffffffffffffffff\r\n"] {
            refused_after(&post("transfer-encoding: chunked\r\n", body));
        }
    }

    #[test]
    fn http_2_is_not_followed() {
        assert_eq!(followed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n\0\x01").0, None);
        let later = format!("{GET}PRI * HTTP/2.0\r\n\r\n\n");
        assert_eq!(followed(later.as_bytes()).0, Some(later.len() - 1), "only at the start");
    }

    proptest! {
        /// It does not matter where the reads end.
        #[test]
        fn reads_may_end_anywhere(
            pieces in prop::collection::vec(prop::sample::select(vec![
                GET, "\r\n", "\n", "\r", "3", "abc", "0", "content-length: 3", "transfer-encoding: chunked", ": ", "x",
            ]), 0..30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let bytes = pieces.concat().into_bytes();
            let whole = Framing::new().follow(&bytes);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut framing = Framing::new();
            let parts = cuts.windows(2).map(|cut| (cut[0], &bytes[cut[0]..cut[1]]));
            let split = parts.map(|(start, part)| framing.follow(part).map_err(|at| start + at)).find(Result::is_err);
            prop_assert_eq!(split.unwrap_or(Ok(())), whole);
        }

        #[test]
        fn framing_does_not_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Framing::new().follow(&bytes);
        }
    }
}
