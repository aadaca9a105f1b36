//! Damaged and hostile images.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "../../fuzz/fuzz_targets/check_image.rs"]
mod check_image;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use check_image::decode_or_refuse;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use weir_image::{Decoding, ImageError, ImageLimits, Options, Stop, inspect};

static IMAGES: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let golden: serde_json::Value = serde_json::from_str(include_str!("data/golden.json")).unwrap();
    let images = golden["images"].as_object().unwrap();
    images
        .iter()
        .map(|(name, text)| (name.clone(), BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap()))
        .collect()
});

proptest! {
    #[test]
    fn damaged_images_are_decoded_or_rejected(
        choices: [u8; 8],
        index: prop::sample::Index,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut: prop::sample::Index,
        is_cut: bool,
    ) {
        let images: Vec<_> = IMAGES.values().collect();
        let mut image = index.get(&images).to_vec();
        for (at, value) in damage {
            let at = at.index(image.len());
            image[at] = value;
        }
        if is_cut {
            image.truncate(cut.index(image.len()));
        }
        decode_or_refuse(&[&choices[..], &image].concat());
    }

    #[test]
    fn arbitrary_bytes_after_a_signature_are_rejected(
        noise: Vec<u8>,
        signature in prop::sample::select(vec![&b"\xff\xd8\xff"[..], b"\x89PNG\r\n\x1a\n", b"RIFF\xff\0\0\0WEBP"]),
    ) {
        decode_or_refuse(&[&[0; 8], signature, &noise].concat());
    }
}

fn error_of(encoded: &[u8]) -> ImageError {
    let decoding = Decoding::new(encoded, &Options::default(), &ImageLimits::default(), &Stop::default());
    let result = decoding.and_then(|decoding| {
        let mut output = vec![0; usize::try_from(decoding.output_bytes()).unwrap()];
        decoding.run(encoded, &mut output, &Stop::default())
    });
    result.unwrap_err()
}

/// The image with `bytes` in place of what follows the first `marker`, at `offset` from its start.
fn patched(image: &[u8], marker: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let at = image.windows(marker.len()).position(|window| window == marker).unwrap() + offset;
    let mut patched = image.to_vec();
    patched[at..at + bytes.len()].copy_from_slice(bytes);
    patched
}

#[test]
fn small_file_of_a_huge_image_is_refused_by_its_header() {
    // Height and width follow the marker of the frame, its length and its precision.
    let jpeg = patched(&IMAGES["jpeg"], b"\xff\xc0", 5, &[0xff, 0, 0xff, 0]);
    // Width and height follow the name of the header, whose checksum is corrected below.
    let mut png = patched(&IMAGES["png-rgb"], b"IHDR", 4, &[0, 0, 0xff, 0, 0, 0, 0xff, 0]);
    let checksum = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&checksum.to_be_bytes());
    let webp = patched(&IMAGES["webp-lossy"], b"VP8 ", 14, &[0xff, 0x3f, 0xff, 0x3f]);
    for (bomb, side) in [(jpeg, 65_280), (png, 65_280), (webp, 16_383)] {
        let error = error_of(&bomb);
        let is_expected = matches!(error, ImageError::TooManyPixels { width, height, .. } if width == side && height == side);
        assert!(is_expected, "{error:?}");
        assert!(error.to_string().contains("sandbox.images.pixels_max"), "{error}");
        assert_eq!(inspect(&bomb, &Stop::default()).unwrap().width, u32::try_from(side).unwrap());
    }
}

#[test]
fn frame_larger_than_its_canvas_is_refused() {
    let webp = patched(&IMAGES["webp-lossy-alpha"], b"VP8 ", 14, &[0xff, 0x3f, 0xff, 0x3f]);
    let error = error_of(&webp).to_string();
    assert!(error.contains("a frame is larger than the image"), "{error}");
}

#[test]
fn number_of_scans_is_limited() {
    let image = &IMAGES["jpeg-progressive"];
    let last_scan = image.windows(2).rposition(|window| window == [0xff, 0xda]).unwrap();
    let end = image.len() - 2;
    let mut many = image[..end].to_vec();
    for _ in 0..100 {
        many.extend_from_slice(&image[last_scan..end]);
    }
    many.extend_from_slice(&[0xff, 0xd9]);
    let error = error_of(&many).to_string();
    assert!(error.contains("Too many scans"), "{error}");
}

#[test]
fn encoded_size_and_options_are_checked_first() {
    let image = &IMAGES["png-rgb"];
    let limits = ImageLimits { encoded_bytes_max: 10, ..ImageLimits::default() };
    let error = Decoding::new(image, &Options::default(), &limits, &Stop::default()).unwrap_err();
    assert_eq!(error, ImageError::EncodedTooLarge { bytes: image.len() as u64, bytes_max: 10 });
    let limits = ImageLimits { pixels_max: 37 * 23 - 1, ..ImageLimits::default() };
    let error = Decoding::new(image, &Options::default(), &limits, &Stop::default()).unwrap_err();
    assert!(matches!(error, ImageError::TooManyPixels { width: 37, height: 23, .. }), "{error:?}");
    let invalid = |options: Options| {
        Decoding::new(image, &options, &ImageLimits::default(), &Stop::default()).unwrap_err().to_string()
    };
    for (options, text) in [
        (Options { mean: vec![0.5; 2], ..Options::default() }, "mean has 2 values"),
        (Options { std: vec![0.0], ..Options::default() }, "std has the value 0"),
        (Options { scale: Some(f32::NAN), ..Options::default() }, "scale must be finite"),
        (Options { crop: Some([38, 23]), ..Options::default() }, "cannot crop 38 x 23 pixels from 37 x 23"),
        (Options { crop: Some([0, 1]), ..Options::default() }, "each side must be from 1"),
        (Options { element_type: weir_types::ElementType::Int8, ..Options::default() }, "cannot become int8"),
        (
            Options { element_type: weir_types::ElementType::Uint8, scale: Some(1.0), ..Options::default() },
            "apply to floats only",
        ),
    ] {
        let error = invalid(options);
        assert!(error.contains(text), "{error}");
    }
}

/// The checksum of PNG.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn fuzz_target_accepts_every_seed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/image");
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| decode_or_refuse(&std::fs::read(seed).unwrap()));
}
