//! Compression of checked-in machine code.

use anyhow::{Context as _, Result};
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use std::io::{Read as _, Write as _};

/// The densest preset of xz: code is compressed once, and unpacking is equally fast for all
/// presets.
const XZ_PRESET: u32 = 9;

/// Compresses a cubin.
pub(super) fn pack(cubin: &[u8]) -> Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(XZ_PRESET))?;
    writer.write_all(cubin)?;
    Ok(writer.finish()?)
}

/// Decompresses a cubin.
pub(super) fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut cubin = Vec::new();
    XzReader::new(packed, false)
        .read_to_end(&mut cubin)
        .context("a cubin is not compressed as it should be")?;
    Ok(cubin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubin_survives_compression() {
        let cubin: Vec<u8> = (0..100_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let packed = pack(&cubin).unwrap();
        assert!(packed.len() < cubin.len() / 4);
        assert_eq!(unpack(&packed).unwrap(), cubin);
        assert!(unpack(&packed[..packed.len() / 2]).is_err());
    }
}
