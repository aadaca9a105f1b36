//! Compressed bodies: `Content-Encoding` of requests, and `Accept-Encoding` for responses.

use super::super::error::ApiError;
use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::read::MultiGzDecoder;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue};
use std::io::{Read, Write};
use weir_call::body::no_room;
use weir_device::{Arena, Buffer, BufferMut};
use weir_types::ErrorCode;

/// Bytes decompressed at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Content encodings of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    /// zlib's format, as HTTP defines it, and not raw deflate.
    Deflate,
}

impl Encoding {
    /// Returns the encoding of a request; none for an uncompressed body.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let known = value.to_str().ok().filter(|_| values.next().is_none()).and_then(Self::parse);
        known.ok_or_else(|| {
            let text = "content-encoding is gzip, deflate or nothing, and only one of them";
            ApiError::new(ErrorCode::InvalidRequest, text)
        })
    }

    /// Returns the encoding that a client requests for the response. A list does not count as a
    /// request: libraries list everything that they can read, and tensors rarely shrink much.
    pub(super) fn wanted(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(ACCEPT_ENCODING)?.to_str().ok()?).flatten()
    }

    fn parse(text: &str) -> Option<Option<Self>> {
        match text.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Some(Self::Gzip)),
            "deflate" => Some(Some(Self::Deflate)),
            "identity" | "" => Some(None),
            _ => None,
        }
    }

    pub(super) fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        })
    }

    /// Decompresses `body`, at offset `lead` of the result's memory. Stops at `bytes_max`. Blocks.
    pub(super) fn decode(
        self,
        body: &Buffer,
        lead: usize,
        arena: &Arena,
        bytes_max: u64,
    ) -> Result<Buffer, ApiError> {
        let mut plain = arena.with_capacity(lead).map_err(no_room)?;
        plain.resize_with_zeroes(lead).map_err(no_room)?;
        match self {
            Self::Gzip => read(MultiGzDecoder::new(&body[..]), &mut plain, lead, bytes_max)?,
            Self::Deflate => {
                let mut decoder = ZlibDecoder::new(&body[..]);
                read(&mut decoder, &mut plain, lead, bytes_max)?;
                if !decoder.into_inner().is_empty() {
                    return Err(broken(&"there are bytes after its end"));
                }
            }
        }
        Ok(plain.freeze().slice(lead..))
    }

    /// Compresses `pieces` into one buffer, optimized for speed. Blocks.
    pub(super) fn encode(self, pieces: &[impl AsRef<[u8]>]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Gzip => write(GzEncoder::new(Vec::new(), Compression::fast()), pieces)?.finish(),
            Self::Deflate => write(ZlibEncoder::new(Vec::new(), Compression::fast()), pieces)?.finish(),
        }
    }
}

fn read(mut from: impl Read, to: &mut BufferMut, lead: usize, bytes_max: u64) -> Result<(), ApiError> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk).map_err(|error| broken(&error))?;
        let Some(read) = chunk.get(..read).filter(|read| !read.is_empty()) else { return Ok(()) };
        if (to.len() - lead + read.len()) as u64 > bytes_max {
            let text = format!("the request body has more than {bytes_max} bytes when it is decompressed");
            return Err(ApiError::new(ErrorCode::BodyTooLarge, text));
        }
        to.extend_from_slice(read).map_err(no_room)?;
    }
}

fn write<W: Write>(mut to: W, pieces: &[impl AsRef<[u8]>]) -> std::io::Result<W> {
    for piece in pieces {
        to.write_all(piece.as_ref())?;
    }
    Ok(to)
}

fn broken(why: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the body is not what content-encoding says: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(encoding: Encoding, body: &[u8], bytes_max: u64) -> Result<Vec<u8>, ErrorCode> {
        let arena = Arena::new(8 << 20);
        let body = arena.copy_of(body).unwrap();
        encoding.decode(&body, 5, &arena, bytes_max).map(|plain| plain.to_vec()).map_err(|error| error.code)
    }

    #[test]
    fn compression_round_trips() {
        let plain = b"tensor ".repeat(50_000);
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            let packed = encoding.encode(&[&plain[..100], &plain[100..]]).unwrap();
            assert!(packed.len() < plain.len() / 10);
            assert_eq!(decode(encoding, &packed, plain.len() as u64), Ok(plain.clone()));
            for end in [0, 1, packed.len() / 2, packed.len() - 1] {
                assert_eq!(
                    decode(encoding, &packed[..end], 1 << 20).err(),
                    Some(ErrorCode::InvalidRequest),
                    "{end}"
                );
            }
            assert_eq!(
                decode(encoding, &[&packed[..], b"more"].concat(), 1 << 20),
                Err(ErrorCode::InvalidRequest)
            );
        }
    }

    #[test]
    fn decompression_bomb_stops_at_the_limit() {
        let bomb = Encoding::Gzip.encode(&[vec![0; 4 << 20]]).unwrap();
        assert!(bomb.len() < 64 << 10);
        assert_eq!(decode(Encoding::Gzip, &bomb, 1 << 20), Err(ErrorCode::BodyTooLarge));
    }

    #[test]
    fn accept_encoding_must_name_one_encoding() {
        let wanted = |text: &'static str| {
            Encoding::wanted(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert_eq!(wanted("gzip"), Some(Encoding::Gzip));
        assert_eq!(wanted("deflate"), Some(Encoding::Deflate));
        assert_eq!((wanted("gzip, deflate, br"), wanted("br"), wanted("identity")), (None, None, None));
        let of = |text: &'static str| {
            Encoding::from_headers(&HeaderMap::from_iter([(
                CONTENT_ENCODING,
                HeaderValue::from_static(text),
            )]))
            .ok()
        };
        assert_eq!(
            (of("GZIP"), of("identity"), of("br"), of("gzip, gzip")),
            (Some(Some(Encoding::Gzip)), Some(None), None, None)
        );
    }
}
