//! The part of the crate `crc-fast` that `object_store` and the S3 server of the tests use.
//!
//! The crate `crc-fast` selects among 40 algorithms at run time, so their tables and code stay in the
//! program: 0.7 MB, for a checksum that Weir does not enable. The workspace replaces it by this
//! crate.

/// The algorithm of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrcAlgorithm {
    /// CRC-32/ISO-HDLC.
    Crc32IsoHdlc,
    /// CRC-32/ISCSI.
    Crc32Iscsi,
    /// CRC-64/NVME.
    Crc64Nvme,
}

/// A checksum of bytes that arrive in parts.
#[derive(Debug, Clone, Copy)]
pub struct Digest {
    table: &'static [u64; 256],
    /// All bits of the checksum, with which it begins and ends.
    ones: u64,
    state: u64,
}

static ISO_HDLC: [u64; 256] = table(0xEDB8_8320);
static ISCSI: [u64; 256] = table(0x82F6_3B78);
static NVME: [u64; 256] = table(0x9A6C_9329_AC4B_C9B5);

/// The remainder of each byte by a reflected polynomial.
const fn table(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ (polynomial * (remainder & 1));
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

impl Digest {
    /// The checksum of no bytes.
    #[must_use]
    pub fn new(algorithm: CrcAlgorithm) -> Self {
        let (table, ones) = match algorithm {
            CrcAlgorithm::Crc32IsoHdlc => (&ISO_HDLC, u64::from(u32::MAX)),
            CrcAlgorithm::Crc32Iscsi => (&ISCSI, u64::from(u32::MAX)),
            CrcAlgorithm::Crc64Nvme => (&NVME, u64::MAX),
        };
        Self { table, ones, state: ones }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let [low, ..] = self.state.to_le_bytes();
            self.state = self.table[usize::from(low ^ byte)] ^ (self.state >> 8);
        }
    }

    /// The checksum of all bytes so far; in the low half, if it has 32 bits.
    #[must_use]
    pub fn finalize(&self) -> u64 {
        self.state ^ self.ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the algorithms' definitions.
    #[test]
    fn checksums_equal_the_check_values() {
        for (algorithm, expected) in [
            (CrcAlgorithm::Crc32IsoHdlc, 0xCBF4_3926),
            (CrcAlgorithm::Crc32Iscsi, 0xE306_9283),
            (CrcAlgorithm::Crc64Nvme, 0xAE8B_1486_0A79_9888),
        ] {
            let mut digest = Digest::new(algorithm);
            digest.update(b"12345");
            digest.update(b"6789");
            assert_eq!(digest.finalize(), expected, "{algorithm:?}");
            assert_eq!(Digest::new(algorithm).finalize(), 0, "{algorithm:?}");
        }
    }
}
