//! The sizes of a decoding: which part of the resized image the result shows, and where.

use crate::options::SIDE_MAX;
use crate::{Fit, ImageError, ImageLimits, Options};

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// The result of a decoding in relation to the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The width and height of the whole resized image.
    pub(crate) scaled: [u32; 2],
    /// The part of the resized image that the result shows.
    pub(crate) taken: Rect,
    /// The width and height of the result.
    pub(crate) canvas: [u32; 2],
    /// The position of the shown part in the result.
    pub(crate) at: [u32; 2],
}

impl Geometry {
    pub(crate) fn new(source: [u32; 2], options: &Options, limits: &ImageLimits) -> Result<Self, ImageError> {
        let size = options.resize.map_or(source, |resize| [resize.width, resize.height]);
        let fit = options.resize.map_or(Fit::Fill, |resize| resize.fit);
        let scaled = scaled(source, size, fit);
        let framed = match fit {
            Fit::Cover | Fit::Contain => size.map(u64::from),
            Fit::Fill | Fit::Inside | Fit::Outside => scaled,
        };
        let canvas = options.crop.map_or(framed, |crop| crop.map(u64::from));
        if canvas[0] > framed[0] || canvas[1] > framed[1] {
            let text = format!(
                "cannot crop {} x {} pixels from {} x {}: resize the image to a larger size, or crop less",
                canvas[0], canvas[1], framed[0], framed[1]
            );
            return Err(ImageError::options(text));
        }
        limits.check(canvas[0], canvas[1])?;
        let columns = Span::new(scaled[0], framed[0], canvas[0]);
        let rows = Span::new(scaled[1], framed[1], canvas[1]);
        Ok(Self {
            scaled: [side(scaled[0]), side(scaled[1])],
            taken: Rect {
                x: side(columns.from),
                y: side(rows.from),
                width: side(columns.len),
                height: side(rows.len),
            },
            canvas: [side(canvas[0]), side(canvas[1])],
            at: [side(columns.at), side(rows.at)],
        })
    }
}

/// One dimension of the geometry.
struct Span {
    /// The first shown row or column of the resized image.
    from: u64,
    len: u64,
    /// Its position in the result.
    at: u64,
}

impl Span {
    /// A resized image of `scaled` is centred in `framed`, whose centre of `canvas` is shown.
    fn new(scaled: u64, framed: u64, canvas: u64) -> Self {
        // Fit::Cover cuts the image off at both sides; Fit::Contain adds margins.
        let cut = half_even(scaled.saturating_sub(framed));
        let margin = framed.saturating_sub(scaled) / 2;
        let cropped = half_even(framed - canvas);
        let from = cut + cropped.saturating_sub(margin);
        let at = margin.saturating_sub(cropped);
        let len = (canvas.saturating_sub(at)).min(scaled.saturating_sub(from));
        Self { from, len, at }
    }
}

/// The width and height of the whole image at the size that `fit` selects.
fn scaled(source: [u32; 2], size: [u32; 2], fit: Fit) -> [u64; 2] {
    let [width, height] = source.map(u64::from);
    let [wanted_width, wanted_height] = size.map(u64::from);
    // Whether the width changes by a larger factor than the height.
    let is_wider = wanted_width * height >= wanted_height * width;
    match fit {
        Fit::Fill => [wanted_width, wanted_height],
        Fit::Inside | Fit::Contain if is_wider => [rounded(width * wanted_height, height), wanted_height],
        Fit::Inside | Fit::Contain => [wanted_width, rounded(height * wanted_width, width)],
        Fit::Outside | Fit::Cover if is_wider => [wanted_width, height * wanted_width / width],
        Fit::Outside | Fit::Cover => [width * wanted_height / height, wanted_height],
    }
}

/// The quotient rounded to the nearest, and at least 1.
fn rounded(dividend: u64, divisor: u64) -> u64 {
    ((2 * dividend + divisor) / (2 * divisor)).max(1)
}

/// Half of `length`; halves are rounded to even, as `torchvision.transforms.CenterCrop` does.
fn half_even(length: u64) -> u64 {
    let half = length / 2;
    half + (length % 2) * (half % 2)
}

/// A size within the resized image, at most the product of two sides.
fn side(length: u64) -> u32 {
    const { assert!((SIDE_MAX as u64) * (SIDE_MAX as u64) <= u32::MAX as u64) };
    length as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, Resize};
    use proptest::prelude::*;

    fn options(fit: Fit, width: u32, height: u32, crop: Option<[u32; 2]>) -> Options {
        let resize = Some(Resize { width, height, fit, filter: Filter::Bilinear });
        Options { resize, crop, ..Options::default() }
    }

    fn geometry(source: [u32; 2], options: &Options) -> Geometry {
        Geometry::new(source, options, &ImageLimits::default()).unwrap()
    }

    #[test]
    fn shorter_side_and_centre_crop_are_those_of_torchvision() {
        // Resize(256) and CenterCrop(224) of 500 x 375 pixels.
        let made = geometry([500, 375], &options(Fit::Outside, 256, 256, Some([224, 224])));
        let taken = Rect { x: 58, y: 16, width: 224, height: 224 };
        assert_eq!(made, Geometry { scaled: [341, 256], taken, canvas: [224, 224], at: [0, 0] });
    }

    #[test]
    fn fits_differ_in_size_and_margins() {
        let made = geometry([200, 100], &options(Fit::Contain, 64, 64, None));
        assert_eq!((made.scaled, made.canvas, made.at), ([64, 32], [64, 64], [0, 16]));
        let made = geometry([200, 100], &options(Fit::Cover, 64, 64, None));
        assert_eq!((made.scaled, made.canvas, made.taken.x), ([128, 64], [64, 64], 32));
        assert_eq!(geometry([200, 100], &options(Fit::Inside, 64, 64, None)).canvas, [64, 32]);
        assert_eq!(geometry([200, 100], &options(Fit::Outside, 64, 64, None)).canvas, [128, 64]);
        assert_eq!(geometry([200, 100], &options(Fit::Fill, 64, 64, None)).canvas, [64, 64]);
        assert_eq!(geometry([1000, 1], &options(Fit::Inside, 10, 10, None)).canvas, [10, 1]);
    }

    #[test]
    fn crop_beyond_the_image_is_an_error() {
        let asked = Options { crop: Some([11, 10]), ..Options::default() };
        let error = Geometry::new([10, 10], &asked, &ImageLimits::default()).unwrap_err();
        assert!(error.to_string().starts_with("cannot crop 11 x 10 pixels from 10 x 10"), "{error}");
        let thin = options(Fit::Outside, 60_000, 60_000, None);
        assert!(Geometry::new([1, 65_000], &thin, &ImageLimits::default()).is_err());
        let thin = options(Fit::Cover, 65_500, 1, None);
        assert!(Geometry::new([1, 65_500], &thin, &ImageLimits::default()).is_ok());
    }

    proptest! {
        #[test]
        fn shown_part_is_within_both_images(
            width in 1_u32..3_000, height in 1_u32..3_000,
            wanted_width in 1_u32..3_000, wanted_height in 1_u32..3_000,
            fit in prop::sample::select(vec![Fit::Fill, Fit::Cover, Fit::Contain, Fit::Inside, Fit::Outside]),
            crop in prop::option::of([1_u32..3_000, 1_u32..3_000]),
        ) {
            let asked = options(fit, wanted_width, wanted_height, crop);
            if let Ok(made) = Geometry::new([width, height], &asked, &ImageLimits::default()) {
                let Geometry { scaled, taken, canvas, at } = made;
                prop_assert!(taken.x + taken.width <= scaled[0] && taken.y + taken.height <= scaled[1]);
                prop_assert!(at[0] + taken.width <= canvas[0] && at[1] + taken.height <= canvas[1]);
                prop_assert!(u64::from(canvas[0]) * u64::from(canvas[1]) <= ImageLimits::default().pixels_max);
                if !matches!(fit, Fit::Contain) {
                    prop_assert_eq!([taken.width, taken.height], canvas);
                }
            }
        }
    }
}
