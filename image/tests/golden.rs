//! Decodings compared with Pillow's: `data/generate.py` has written the images and the tensors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;
use std::collections::HashMap;
use weir_image::{
    Channels, Decoding, Filter, Fit, ImageError, ImageLimits, Layout, Options, Resize, Stop, inspect,
};
use weir_types::ElementType;

#[derive(Deserialize)]
struct Golden {
    images: HashMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    image: String,
    options: Asked,
    shape: [u32; 4],
    /// Largest difference of a pixel.
    tolerance: u8,
    tensor: String,
}

#[derive(Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
struct Asked {
    resize: Option<(u32, u32, String, String)>,
    crop: Option<[u32; 2]>,
    channels: String,
    layout: String,
    element_type: String,
    scale: Option<f32>,
    mean: Vec<f32>,
    std: Vec<f32>,
    background: Option<[u8; 3]>,
    ignore_orientation: bool,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            resize: None,
            crop: None,
            channels: "rgb".into(),
            layout: "nchw".into(),
            element_type: "uint8".into(),
            scale: None,
            mean: Vec::new(),
            std: Vec::new(),
            background: None,
            ignore_orientation: false,
        }
    }
}

impl Asked {
    fn options(&self) -> Options {
        let resize = self.resize.as_ref().map(|(width, height, fit, filter)| Resize {
            width: *width,
            height: *height,
            fit: match &**fit {
                "fill" => Fit::Fill,
                "cover" => Fit::Cover,
                "contain" => Fit::Contain,
                "inside" => Fit::Inside,
                "outside" => Fit::Outside,
                other => panic!("there is no fit {other}"),
            },
            filter: match &**filter {
                "nearest" => Filter::Nearest,
                "bilinear" => Filter::Bilinear,
                "bicubic" => Filter::Bicubic,
                "lanczos" => Filter::Lanczos,
                other => panic!("there is no filter {other}"),
            },
        });
        Options {
            resize,
            crop: self.crop,
            channels: match &*self.channels {
                "rgb" => Channels::Rgb,
                "bgr" => Channels::Bgr,
                "grey" => Channels::Grey,
                other => panic!("there are no channels {other}"),
            },
            layout: if self.layout == "nchw" { Layout::Nchw } else { Layout::Nhwc },
            element_type: match &*self.element_type {
                "uint8" => ElementType::Uint8,
                "fp16" => ElementType::Fp16,
                "fp32" => ElementType::Fp32,
                other => panic!("there is no element type {other}"),
            },
            scale: self.scale,
            mean: self.mean.clone(),
            std: self.std.clone(),
            background: self.background,
            ignore_orientation: self.ignore_orientation,
        }
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("data/golden.json")).unwrap()
}

fn bytes(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap()
}

fn decode(encoded: &[u8], options: &Options) -> (Vec<u8>, [u32; 4]) {
    let decoding = Decoding::new(encoded, options, &ImageLimits::default(), &Stop::default()).unwrap();
    let mut output = vec![0xaa; usize::try_from(decoding.output_bytes()).unwrap()];
    decoding.run(encoded, &mut output, &Stop::default()).unwrap();
    (output, decoding.shape())
}

#[test]
fn tensors_are_those_of_pillow() {
    let Golden { images, cases } = golden();
    let mut failures = Vec::new();
    for case in &cases {
        let (output, shape) = decode(&bytes(&images[&case.image]), &case.options.options());
        let expected = bytes(&case.tensor);
        let name = format!("{} with {:?}", case.image, case.options);
        if shape != case.shape || output.len() != expected.len() {
            failures.push(format!("{name}: {shape:?} instead of {:?}", case.shape));
        } else if case.tolerance == 0 {
            let differing = output.iter().zip(&expected).filter(|(made, wanted)| made != wanted).count();
            if differing > 0 {
                failures.push(format!("{name}: {differing} of {} bytes differ", output.len()));
            }
        } else {
            let largest = output.iter().zip(&expected).map(|(made, wanted)| made.abs_diff(*wanted)).max();
            let sum: u64 =
                output.iter().zip(&expected).map(|(made, wanted)| u64::from(made.abs_diff(*wanted))).sum();
            let mean = sum as f64 / output.len() as f64;
            println!("{}: largest difference {largest:?}, mean {mean:.2}", case.image);
            if largest > Some(case.tolerance) || mean > 1.5 {
                failures.push(format!("{name}: largest difference {largest:?}, mean {mean:.2}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases.len() > 40);
}

#[test]
fn header_has_the_displayed_size() {
    let Golden { images, cases } = golden();
    for case in cases.iter().filter(|case| {
        case.options.options() == Options { element_type: ElementType::Uint8, ..Options::default() }
    }) {
        let header = inspect(&bytes(&images[&case.image]), &Stop::default()).unwrap();
        assert_eq!([header.height, header.width], [case.shape[2], case.shape[3]], "{}", case.image);
        assert!(case.image.starts_with(&header.format.to_string().to_lowercase()), "{}", case.image);
    }
}

#[test]
fn image_that_ends_early_is_an_error() {
    let Golden { images, .. } = golden();
    for (name, text) in &images {
        let whole = bytes(text);
        for len in (0..whole.len().saturating_sub(16)).step_by(1 + whole.len() / 97) {
            let cut = &whole[..len];
            let result = Decoding::new(cut, &Options::default(), &ImageLimits::default(), &Stop::default())
                .and_then(|decoding| {
                    let mut output = vec![0; usize::try_from(decoding.output_bytes()).unwrap()];
                    decoding.run(cut, &mut output, &Stop::default())
                });
            // The first frame of an animation, and metadata after the pixels, can be complete.
            if result.is_ok() {
                assert!(name == "webp-animated" || name == "webp-oriented", "{name} of {len} bytes");
            }
        }
    }
}

#[test]
fn stopped_decoding_is_an_error() {
    let Golden { images, .. } = golden();
    let stop = Stop::default();
    stop.set();
    for (name, text) in &images {
        let encoded = bytes(text);
        let decoding =
            Decoding::new(&encoded, &Options::default(), &ImageLimits::default(), &Stop::default()).unwrap();
        let mut output = vec![0; usize::try_from(decoding.output_bytes()).unwrap()];
        let error = decoding.run(&encoded, &mut output, &stop).unwrap_err();
        assert_eq!(inspect(&encoded, &stop), Err(ImageError::Stopped), "{name}");
        assert_eq!(error, ImageError::Stopped, "{name}");
    }
}
