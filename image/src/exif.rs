//! The orientation in EXIF metadata.

/// The transformation from the stored to the displayed image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Orientation {
    /// Rows and columns change places. Applied before the mirroring.
    pub(crate) transposed: bool,
    /// The displayed image is mirrored horizontally.
    pub(crate) mirrored_x: bool,
    /// The displayed image is mirrored vertically.
    pub(crate) mirrored_y: bool,
}

impl Orientation {
    /// The orientation in `exif`, or the identity if it has none or is damaged: EXIF is a hint.
    pub(crate) fn from_exif(exif: &[u8]) -> Self {
        // Some writers of WebP keep the prefix that EXIF has within JPEG.
        let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        Self::from_tag(orientation_tag(tiff).unwrap_or(1))
    }

    fn from_tag(tag: u16) -> Self {
        let (transposed, mirrored_x, mirrored_y) = match tag {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transposed, mirrored_x, mirrored_y }
    }

    /// The width and height of the displayed image.
    pub(crate) fn displayed(self, width: u32, height: u32) -> [u32; 2] {
        if self.transposed { [height, width] } else { [width, height] }
    }
}

/// The tag `Orientation` in the first directory of a TIFF file.
fn orientation_tag(tiff: &[u8]) -> Option<u16> {
    const ORIENTATION: u16 = 0x0112;
    let is_big_endian = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let directory = usize::try_from(long(4)?).ok()?;
    let first = directory.checked_add(2)?;
    let entries = (0..usize::from(short(directory)?)).map(|index| first.checked_add(12 * index));
    for entry in entries {
        if short(entry?)? == ORIENTATION {
            return short(entry?.checked_add(8)?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exif(tag: u8) -> Vec<u8> {
        let mut tiff = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        tiff.extend([tag, 0, 0, 0]);
        tiff
    }

    #[test]
    fn both_byte_orders_are_read() {
        assert_eq!(orientation_tag(&exif(6)), Some(6));
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation_tag(big), Some(8));
        let prefixed = [b"Exif\0\0".to_vec(), exif(3)].concat();
        assert_eq!(Orientation::from_exif(&prefixed), Orientation::from_tag(3));
    }

    proptest! {
        #[test]
        fn damaged_metadata_is_the_identity(cut in 0_usize..22, noise: Vec<u8>) {
            prop_assert_eq!(Orientation::from_exif(&exif(6)[..cut.min(19)]), Orientation::default());
            let _ = Orientation::from_exif(&[b"MM\0*".to_vec(), noise].concat());
        }
    }
}
