//! JPEG, PNG and WebP images as tensors: decodes an image, applies its EXIF orientation, resizes it
//! and normalises it. Pure.
//!
//! Images are untrusted. Every size is checked against [`ImageLimits`] before memory is allocated
//! for it, and [`Decoding`] states the memory that it takes, so that the caller can account for it
//! first. A decoding that takes too long ends soon after its [`Stop`] is set.
//!
//! ```
//! use weir_image::{Decoding, ImageLimits, Options, Stop};
//! # let encoded = include_bytes!("../tests/data/pixel.png");
//! let decoding = Decoding::new(encoded, &Options::default(), &ImageLimits::default(), &Stop::default())?;
//! let mut tensor = vec![0; decoding.output_bytes() as usize];
//! decoding.run(encoded, &mut tensor, &Stop::default())?;
//! assert_eq!((decoding.shape(), tensor.len()), ([1, 3, 1, 1], 12));
//! # Ok::<(), weir_image::ImageError>(())
//! ```

mod error;
pub use error::ImageError;
mod options;
pub use options::{Channels, Filter, Fit, ImageLimits, Layout, Options, Resize};

mod exif;
mod formats;
mod header;
mod source;
pub use header::{Format, Header, inspect};
pub use source::Stop;

mod convert;
mod decoding;
mod geometry;
mod normalise;
mod resample;
pub use decoding::Decoding;
