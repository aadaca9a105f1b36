//! Model inference on one device: validation at upload, loading on demand, residency while pinned,
//! and runs outside the async runtime.
//!
//! The steps in the life of a model:
//! - [`Preparer::prepare`] validates and optimises an upload in a child process with limits. It
//!   returns a description of the model ([`Prepared`]) or the reason for the refusal
//!   ([`UploadRefusal`]).
//! - [`ModelCache::acquire`] loads the model into the device's memory and returns a [`Pin`].
//! - [`Pin::run`] checks a [`RunRequest`] against the model's signature and queues it for the
//!   device, which may run it in a batch with other requests ([`BatchRules`]). The returned future
//!   resolves to a [`Completion`]; dropping the future stops the run.
//!
//! The engines implement [`Backend`], [`Model`] and [`Session`] in separate crates: `weir-onnx`
//! runs models on the CPU, and `weir-cuda` on GPUs. [`FakeBackend`] runs models that only take
//! time.
//!
//! Inputs and outputs are [`Tensor`]s in memory of a [`weir_device::Arena`]. An output that only
//! other runs on the same device read can stay in device memory ([`DeviceTensor`]). Every failure
//! after the upload is an [`InferenceError`].
//!
//! ```
//! # async fn example(
//! #     file: &std::path::Path,
//! #     blobs: &std::path::Path,
//! #     image: weir_inference::Tensor,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use weir_inference::{
//!     CacheConfig, FakeBackend, Meter, ModelCache, ModelKey, ModelSource, Preparer, Profiles,
//!     RunRequest,
//! };
//! use weir_types::{Batching, ModelId, Name, Precision, TenantId, Version};
//!
//! let arena = weir_device::Arena::new(64 << 20);
//! let backend = Arc::new(FakeBackend::new(arena.clone()));
//! let prepared = Arc::new(backend.prepare(file, Precision::default(), blobs).await?);
//!
//! let config = CacheConfig { capacity_bytes: 1 << 30, slots: 2, run_queue_len_max: 1_000 };
//! let cache = ModelCache::start(config, backend, arena, Profiles::default())?;
//! let (tenant, name) = (TenantId::default(), Name::new("digits")?);
//! let id = ModelId { tenant, name, version: Version(1) };
//! let key = ModelKey { id, generation: 1 };
//! let (batching, meter) = (Batching::default(), Meter::default());
//! let (blobs, slots) = (blobs.to_owned(), None);
//! let source = Arc::new(ModelSource { key, prepared, blobs, slots, batching, meter });
//!
//! let pin = cache.acquire(&source, &[]).await?;
//! let request = RunRequest { inputs: vec![("image".to_owned(), image)], ..RunRequest::default() };
//! for (name, tensor) in pin.run(request).await?.outputs {
//!     println!("{name}: {} {}", tensor.element_type(), tensor.shape());
//! }
//! # Ok(())
//! # }
//! ```

mod tensor;
pub use tensor::{Tensor, TensorError};

mod value;
pub use value::{DeviceHandle, DeviceMemory, DeviceTensor, HandedOver, Value, WeakDeviceTensor};

mod error;
pub use error::{ErrorKind, InferenceError};

mod prepare;
pub use prepare::{
    Content, FormMaker, FormResult, PrepareError, Prepared, Shareable, Unsupported, UploadRefusal, Variant,
    Weight,
};

mod mapping;
pub use mapping::{FileIdentity, MappedFile};
mod integrity;
pub use integrity::{IntegrityCheck, IntegrityError, VerifiedFiles};

mod staging;
pub use staging::FileBytes;

mod generated_inputs;
pub use generated_inputs::{GeneratedInputs, InputsError};

mod footprint;
pub use footprint::{Footprint, SharedPart};

mod meter;
pub use meter::{Meter, ObservedRun, RunObserver, Used};

mod backend;
pub use backend::{
    Backend, ExecutorFigures, LossHook, Model, ModelKey, ModelSource, PinnedCacheFigures, Preparer, Session,
};

mod cache;
pub use cache::{
    CacheConfig, FinishedLoad, Health, ModelCache, PendingRun, Pin, Probe, ResidentModel, RunSetting,
};

mod request;
pub use request::{Completion, Execution, Job, PRIORITY_DEFAULT, PlacedJob, RunRequest};

mod batching;
pub use batching::BatchRules;

mod threads;

mod interrupt;
pub use interrupt::{HookGuard, Interrupt, StopReason};

mod profiles;
pub use profiles::Profiles;

mod fake;
pub use fake::{FakeBackend, FakeCosts, FakeModel};
