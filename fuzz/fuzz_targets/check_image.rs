//! Checks for arbitrary bytes as an encoded image. The fuzzer uses them, and so does a test of
//! `image/`.

use weir_image::{Channels, Decoding, Filter, Fit, ImageLimits, Layout, Options, Resize, Stop, inspect};
use weir_types::ElementType;

/// Small, so that each decoding is brief.
const LIMITS: ImageLimits = ImageLimits { encoded_bytes_max: 1 << 20, pixels_max: 1 << 18 };

/// Bytes before the image that choose the options.
const CHOICES: usize = 8;

/// Decodes or rejects an image, with options that the first bytes choose.
pub(crate) fn decode_or_refuse(bytes: &[u8]) {
    let Some((choices, encoded)) = bytes.split_first_chunk::<CHOICES>() else { return };
    let options = options(choices);
    let header = inspect(encoded, &Stop::default());
    let Ok(decoding) = Decoding::new(encoded, &options, &LIMITS, &Stop::default()) else { return };
    let header = header.expect("a decoding has a header");
    assert!(u64::from(header.width) * u64::from(header.height) <= LIMITS.pixels_max);
    let elements: u64 = decoding.shape().into_iter().map(u64::from).product();
    assert!(elements > 0 && elements <= 3 * LIMITS.pixels_max);
    let element_bytes = options.element_type.size_bytes().expect("elements of an image have a size");
    assert_eq!(decoding.output_bytes(), elements * element_bytes as u64);
    assert!(decoding.working_bytes() >= u64::from(header.width) * u64::from(header.height));
    let mut output = vec![0; usize::try_from(decoding.output_bytes()).expect("the limits are small")];
    let _ = decoding.run(encoded, &mut output, &Stop::default());
}

fn options(choices: &[u8; CHOICES]) -> Options {
    let [width, height, fit, filter, channels, kind, crop, background] = *choices;
    let side = |byte: u8| u32::from(byte).pow(2).max(1);
    let fits = [Fit::Fill, Fit::Cover, Fit::Contain, Fit::Inside, Fit::Outside];
    let filters = [Filter::Nearest, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];
    let types = [ElementType::Uint8, ElementType::Fp16, ElementType::Bf16, ElementType::Fp32];
    Options {
        resize: (fit < 200).then(|| Resize {
            width: side(width),
            height: side(height),
            fit: fits[usize::from(fit) % fits.len()],
            filter: filters[usize::from(filter) % filters.len()],
        }),
        crop: (crop > 0).then(|| [side(crop), side(crop / 2)]),
        channels: [Channels::Rgb, Channels::Bgr, Channels::Grey][usize::from(channels) % 3],
        layout: if channels > 127 { Layout::Nhwc } else { Layout::Nchw },
        element_type: types[usize::from(kind) % types.len()],
        background: (background > 127).then_some([background, 0, 255]),
        ignore_orientation: kind > 127,
        ..Options::default()
    }
}
