//! Encoding of byte strings in tensors: a length of four little-endian bytes, followed by the
//! string.

use crate::{Error, Result};

/// Encodes `strings` as tensor data.
pub(crate) fn join<S: AsRef<[u8]>>(strings: &[S]) -> Result<Vec<u8>> {
    let total = strings.iter().map(|string| 4 + string.as_ref().len()).sum();
    let mut bytes = Vec::with_capacity(total);
    for string in strings {
        let string = string.as_ref();
        let length = u32::try_from(string.len());
        bytes.extend(length.map_err(|_| Error::invalid("a string has 4 GiB or more"))?.to_le_bytes());
        bytes.extend_from_slice(string);
    }
    Ok(bytes)
}

/// Decodes the strings of tensor data.
pub(crate) fn split(mut bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let mut strings = Vec::new();
    while !bytes.is_empty() {
        let split = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
        });
        let Some((string, rest)) = split else {
            return Err(Error::invalid(format_args!("string {} ends early", strings.len())));
        };
        strings.push(string);
        bytes = rest;
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn strings_round_trip(strings: Vec<Vec<u8>>) {
            let bytes = join(&strings).unwrap();
            prop_assert_eq!(split(&bytes).unwrap(), strings);
        }

        #[test]
        fn random_bytes_decode_or_fail(bytes: Vec<u8>) {
            if let Ok(strings) = split(&bytes) {
                prop_assert_eq!(join(&strings).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn truncated_strings_are_reported() {
        assert_eq!(
            split(&[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b']).unwrap_err(),
            Error::InvalidArgument("string 1 ends early".into())
        );
        assert!(split(&[255, 255, 255, 255]).is_err());
        assert_eq!(split(&[]).unwrap(), [[0_u8; 0]; 0]);
    }
}
