//! Implements `weir:inference/image`.

use super::bindings::weir::inference::image::{self as guest, Host, Info};
use super::bindings::weir::inference::tensors::Error as GuestError;
use super::tensors::push;
use super::{CallError, InferenceView};
use crate::images::DecodeError;
use std::time::Instant;
use wasmtime::component::Resource;
use weir_device::{Arena, ArenaExhausted, Buffer};
use weir_image::{
    Channels, Decoding, Filter, Fit, Format, ImageError, Layout, Options, Resize, Stop, inspect,
};
use weir_inference::{Tensor, Value};
use weir_telemetry::Phase;
use weir_types::{ElementType, Shape};

impl Host for InferenceView<'_> {
    async fn inspect(&mut self, encoded: Resource<Value>) -> Result<Info, CallError> {
        let encoded = self.encoded_image(&encoded).await?;
        let header = self.image_job(move |stop| inspect(&encoded, stop)).await?;
        Ok(Info { format: header.format.into(), width: header.width, height: header.height })
    }

    async fn decode(
        &mut self,
        encoded: Resource<Value>,
        options: Option<guest::Options>,
    ) -> Result<Resource<Value>, CallError> {
        let encoded = self.encoded_image(&encoded).await?;
        let options = options.map_or_else(Options::default, Options::from);
        let limits = self.ctx.images.limits();
        let memory = ImageMemory {
            arena: self.ctx.arena.clone(),
            bytes_left: self.ctx.tensor_bytes_left,
            bytes_max: self.ctx.tensor_bytes_max,
        };
        let job = move |stop: &Stop| {
            let decoding = Decoding::new(&encoded, &options, &limits, stop)?;
            Ok(memory.decode(&decoding, &encoded, options.element_type, stop))
        };
        let tensor = self.image_job(job).await??;
        push(self.ctx, self.table, tensor)
    }
}

impl InferenceView<'_> {
    /// The bytes of an encoded image that the guest holds as a tensor.
    async fn encoded_image(&mut self, handle: &Resource<Value>) -> Result<Buffer, CallError> {
        let tensor = self.host_tensor(handle).await?;
        let data = tensor.data();
        let single = || {
            let length = u32::from_le_bytes(data.get(..4)?.try_into().ok()?);
            (usize::try_from(length).ok()? == data.len() - 4).then(|| data.slice(4..))
        };
        match tensor.element_type() {
            ElementType::Uint8 => Ok(data.clone()),
            ElementType::Bytes => single().ok_or_else(|| {
                CallError::invalid("give one encoded image: the tensor has several elements, or none")
            }),
            other => {
                let text = format!(
                    "the tensor holds {other} and no encoded image: give the bytes of the image as UINT8"
                );
                Err(CallError::invalid(text))
            }
        }
    }

    /// Runs `job` within the limits of the node and of the invocation.
    async fn image_job<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Stop) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, CallError> {
        let images = self.ctx.images.clone();
        let started = Instant::now();
        let usage = self.ctx.usage.clone();
        let job = images.run(self.ctx.deadline, move |time| usage.charge(time), job);
        let result = self.ctx.trace.during(Phase::ImageDecode, job).await;
        self.ctx.metrics.phase(Phase::ImageDecode, started.elapsed());
        Ok(result?)
    }
}

/// The memory that a decoding may take.
struct ImageMemory {
    arena: Arena,
    /// The remaining bytes of tensors that the guest may hold.
    bytes_left: u64,
    bytes_max: u64,
}

impl ImageMemory {
    /// Decodes the image, after its memory is known to fit the invocation's and the node's limits.
    fn decode(
        &self,
        decoding: &Decoding,
        encoded: &[u8],
        element_type: ElementType,
        stop: &Stop,
    ) -> Result<Tensor, CallError> {
        let working_bytes = decoding.working_bytes();
        let bytes = working_bytes.saturating_add(decoding.output_bytes());
        if bytes > self.bytes_left {
            return Err(CallError::exhausted(format!(
                "decoding the image takes {bytes} bytes, and {} of the function's {} bytes for tensors are left; send a smaller image, or raise limits.tensor_bytes",
                self.bytes_left, self.bytes_max
            )));
        }
        let _reserved = Reservation::new(&self.arena, working_bytes)?;
        let mut output =
            self.arena.buffer(usize::try_from(decoding.output_bytes()).map_err(CallError::exhausted)?)?;
        decoding.run(encoded, &mut output, stop).map_err(DecodeError::from)?;
        let shape = Shape::new(&decoding.shape()).map_err(CallError::invalid)?;
        Tensor::new(element_type, shape, output.freeze()).map_err(CallError::invalid)
    }
}

/// Memory outside the arena that counts as used.
struct Reservation<'a> {
    arena: &'a Arena,
    bytes: u64,
}

impl<'a> Reservation<'a> {
    fn new(arena: &'a Arena, bytes: u64) -> Result<Self, ArenaExhausted> {
        arena.reserve(bytes)?;
        Ok(Self { arena, bytes })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.arena.release(self.bytes);
    }
}

impl From<DecodeError> for CallError {
    fn from(error: DecodeError) -> Self {
        let text = error.to_string();
        Self::Guest(match error {
            // A stopped decoding has no caller that waits for it.
            DecodeError::Image(ImageError::Stopped) => GuestError::Cancelled,
            DecodeError::Image(_) | DecodeError::Crashed => GuestError::InvalidArgument(text),
            DecodeError::DeadlineExceeded => GuestError::DeadlineExceeded,
            DecodeError::OverTime { .. } => GuestError::ResourceExhausted(text),
            DecodeError::Busy(_) | DecodeError::ShuttingDown => GuestError::Unavailable(text),
        })
    }
}

impl From<guest::Options> for Options {
    fn from(options: guest::Options) -> Self {
        Self {
            resize: options.resize.map(|guest::Resize { to, fit, filter }| Resize {
                width: to.width,
                height: to.height,
                fit: fit.into(),
                filter: filter.into(),
            }),
            crop: options.crop.map(|size| [size.width, size.height]),
            channels: options.channels.into(),
            layout: options.layout.into(),
            element_type: options.element_type.into(),
            scale: options.scale,
            mean: options.mean,
            std: options.std,
            background: options.background.map(|colour| [colour.red, colour.green, colour.blue]),
            ignore_orientation: options.ignore_orientation,
        }
    }
}

macro_rules! cases {
    ($from:path => $to:path: $($case:ident),*) => {
        impl From<$from> for $to {
            fn from(case: $from) -> Self {
                type From = $from;
                match case { $(From::$case => Self::$case,)* }
            }
        }
    };
}

cases!(guest::Fit => Fit: Fill, Cover, Contain, Inside, Outside);
cases!(guest::Filter => Filter: Nearest, Bilinear, Bicubic, Lanczos);
cases!(guest::Channels => Channels: Rgb, Bgr, Grey);
cases!(guest::Layout => Layout: Nchw, Nhwc);
cases!(Format => guest::Format: Jpeg, Png, Webp);
