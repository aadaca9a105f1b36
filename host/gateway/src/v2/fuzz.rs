//! Checks of the encodings of bodies with arbitrary bytes.

use super::encoding::Encoding;
use http::HeaderMap;
use weir_device::Arena;

/// Offset of a decompressed body in its memory.
const LEAD_BYTES: usize = 5;

/// Reads or refuses the encodings that headers name.
pub(crate) fn encodings(headers: &HeaderMap) {
    let of_body = Encoding::from_headers(headers);
    if let Ok(Some(encoding)) = of_body {
        let header = encoding.header();
        let named = HeaderMap::from_iter([(http::header::CONTENT_ENCODING, header)]);
        assert_eq!(Encoding::from_headers(&named).ok(), Some(Some(encoding)));
    }
    let _ = Encoding::wanted(headers);
}

/// Decompresses or refuses a body. The bits of `choice` choose the encoding and the limit.
pub(crate) fn body(choice: u8, compressed: &[u8], arena: &Arena, bytes_max: u64) {
    let encoding = if choice & 1 == 0 { Encoding::Gzip } else { Encoding::Deflate };
    let bytes_max = bytes_max >> (choice >> 1).min(20);
    let Ok(compressed) = arena.copy_of(compressed) else { return };
    let Ok(plain) = encoding.decode(&compressed, LEAD_BYTES, arena, bytes_max) else { return };
    assert!(plain.len() as u64 <= bytes_max, "{} bytes, above {bytes_max}", plain.len());
    let again = encoding.encode(&[&plain[..]]).ok().and_then(|packed| arena.copy_of(&packed).ok());
    let Some(again) = again else { return };
    let again = encoding.decode(&again, LEAD_BYTES, arena, bytes_max);
    assert!(again.is_ok_and(|again| again[..] == plain[..]), "a compressed body has other bytes");
}
