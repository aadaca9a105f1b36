//! A decoding of one image: the format and size of its result, its memory, and its run.

use crate::convert::Conversion;
use crate::exif::Orientation;
use crate::geometry::{Geometry, Rect};
use crate::header::{Format, Header, inspect};
use crate::source::Stop;
use crate::{Filter, ImageError, ImageLimits, Layout, Options, formats, normalise, resample};

/// A checked decoding of one image, which has not allocated memory for its pixels yet.
#[derive(Debug, Clone)]
pub struct Decoding {
    header: Header,
    options: Options,
    geometry: Geometry,
}

impl Decoding {
    /// Reads the header of `encoded`, and checks it and the options.
    ///
    /// # Errors
    /// The image, or the options, are invalid or exceed a limit, or `stop` was set.
    pub fn new(
        encoded: &[u8],
        options: &Options,
        limits: &ImageLimits,
        stop: &Stop,
    ) -> Result<Self, ImageError> {
        let bytes = encoded.len() as u64;
        if bytes > limits.encoded_bytes_max {
            return Err(ImageError::EncodedTooLarge { bytes, bytes_max: limits.encoded_bytes_max });
        }
        options.check()?;
        let mut header = inspect(encoded, stop)?;
        limits.check(header.width.into(), header.height.into())?;
        if options.ignore_orientation {
            let stored = header.stored;
            header = Header {
                width: stored.width,
                height: stored.height,
                orientation: Orientation::default(),
                ..header
            };
        }
        let geometry = Geometry::new([header.width, header.height], options, limits)?;
        Ok(Self { header, options: options.clone(), geometry })
    }

    /// The shape of the tensor, with a batch dimension of 1.
    #[must_use]
    pub fn shape(&self) -> [u32; 4] {
        let channels = self.options.channels.count() as u32;
        let [width, height] = self.geometry.canvas;
        match self.options.layout {
            Layout::Nchw => [1, channels, height, width],
            Layout::Nhwc => [1, height, width, channels],
        }
    }

    /// The size of the tensor.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        let [width, height] = self.geometry.canvas.map(u64::from);
        let element = self.options.element_type.size_bytes().unwrap_or(1);
        width * height * (self.options.channels.count() * element) as u64
    }

    /// The memory that [`run`](Self::run) allocates at most, besides the tensor.
    #[must_use]
    pub fn working_bytes(&self) -> u64 {
        let stored = &self.header.stored;
        let decoded = stored.pixels() * stored.channels as u64;
        let channels = self.options.channels.count() as u64;
        let converted = stored.pixels() * channels;
        let conversion = if self.conversion().is_identity() { decoded } else { decoded + converted };
        let resize = self.resize_filter().map_or(0, |_| {
            let width = u64::from(self.geometry.taken.width);
            let rows = u64::from(self.header.height) + u64::from(self.geometry.taken.height);
            // The pixels, the result of each pass, and the weights.
            converted + width * rows * channels + WEIGHTS_BYTES
        });
        (decoded + stored.decoder_bytes).max(conversion).max(resize)
    }

    /// Decodes the image that this decoding was made for, and writes the tensor to `output`, which
    /// has [`output_bytes`](Self::output_bytes).
    ///
    /// # Errors
    /// The image is damaged, or `stop` was set.
    pub fn run(&self, encoded: &[u8], output: &mut [u8], stop: &Stop) -> Result<(), ImageError> {
        let stored = &self.header.stored;
        // The limits fit the address space.
        let mut decoded = vec![0; stored.pixels() as usize * stored.channels];
        let result = match self.header.format {
            Format::Jpeg => formats::jpeg::decode(encoded, stored, &mut decoded, stop),
            Format::Png => formats::png::decode(encoded, &mut decoded, stop),
            Format::Webp => formats::webp::decode(encoded, &mut decoded, stop),
        };
        // A stopped decoder fails to read.
        stop.check()?;
        result?;
        let pixels = self.conversion().run(decoded, stop)?;
        let Geometry { scaled, taken, canvas, at } = self.geometry;
        match self.resize_filter() {
            Some(filter) => {
                let resized = resample::resample(&pixels, scaled, taken, filter, stop)?;
                let whole = Rect { x: 0, y: 0, ..taken };
                normalise::write(&resized, whole, canvas, at, &self.options, output);
            }
            None => normalise::write(&pixels, taken, canvas, at, &self.options, output),
        }
        Ok(())
    }

    fn conversion(&self) -> Conversion {
        Conversion {
            stored: self.header.stored,
            orientation: self.header.orientation,
            channels: self.options.channels,
            background: self.options.background,
        }
    }

    /// The filter, if the size changes.
    fn resize_filter(&self) -> Option<Filter> {
        let is_resized = self.geometry.scaled != [self.header.width, self.header.height];
        self.options.resize.filter(|_| is_resized).map(|resize| resize.filter)
    }
}

/// Bound on the weights of a resize. Per dimension, they are at most six, of four bytes, for each
/// pixel of the larger side, in a vector that has doubled.
const WEIGHTS_BYTES: u64 = 16 << 20;
