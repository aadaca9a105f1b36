//! Model in a device's memory.

use crate::bound::Bound;
use crate::device::Gpu;
use crate::failure::weights_failure;
use crate::program::{ModelProgramError, Program};
use crate::programs::ProgramKey;
use crate::session::CudaSession;
use crate::weights::{PinnedLookups, Weights, WeightsError};
use bytes::Bytes;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use weir_device::cuda::MemoryOwner;
use weir_graph::WeightData;
use weir_inference::{Footprint, InferenceError, IntegrityError, Model, ModelSource, Session, SharedPart};
use weir_types::{ContentHash, ModelId, Platform, Port, Precision, Shape, Signature, TenantId};

/// Maximum number of cached programs, keyed by input shapes.
const PROGRAMS_MAX: u64 = 32;

/// Resident model.
pub(crate) struct CudaModel(Arc<ModelShared>);

/// State shared by the model's sessions. Fields drop in declaration order: data in device memory
/// must be freed before the device.
pub(crate) struct ModelShared {
    programs: Cache<Vec<Shape>, Arc<Bound>>,
    pub(crate) weights: Weights,
    model: weir_graph::OnnxModel,
    /// Hash of the file with the graph.
    skeleton: ContentHash,
    pub(crate) precision: Precision,
    /// Position in the signature of each input of the graph.
    inputs: Vec<usize>,
    /// Position in the graph of each output of the signature.
    pub(crate) outputs: Vec<usize>,
    pub(crate) owner: MemoryOwner,
    id: ModelId,
    pub(crate) gpu: Arc<Gpu>,
}

/// Description of a model for loading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelFiles {
    /// Identifier of the model.
    id: ModelId,
    /// Inputs and outputs.
    pub(crate) signature: Signature,
    /// Precision of the computation.
    pub(crate) precision: Precision,
    /// Hash of the file with the graph.
    skeleton: ContentHash,
    /// Folder with that file and the weight files.
    blobs: PathBuf,
}

impl ModelFiles {
    /// Creates the description of the model's GPU form.
    pub(crate) fn for_source(source: &ModelSource) -> Result<Self, InferenceError> {
        let id = source.id().clone();
        let Some(form) = source.prepared.variants_for(Platform::Cuda).next() else {
            return Err(InferenceError::Load { model: id, why: "it has no form for a GPU".into() });
        };
        let blobs = std::path::absolute(&source.blobs);
        let blobs = blobs
            .map_err(|error| InferenceError::Load { model: id.clone(), why: error.to_string().into() })?;
        let signature = source.prepared.signature.clone();
        Ok(Self { id, signature, precision: form.precision, skeleton: form.skeleton, blobs })
    }
}

impl CudaModel {
    /// Allocates device memory for a model, and starts the transfer of its weights. Runs may start
    /// immediately; see [`Model::arrive`]. Blocks.
    pub(crate) fn load(gpu: Arc<Gpu>, files: &ModelFiles) -> Result<Self, InferenceError> {
        let ModelFiles { id, signature, precision, skeleton, blobs } = files;
        let broken = |why: String| InferenceError::Load { model: id.clone(), why: why.into() };
        let file = std::fs::read(blobs.join(skeleton.to_string()));
        let file = file.map_err(|error| broken(format!("{skeleton}: {error}")))?;
        if ContentHash::from_content(&file) != *skeleton {
            return Err(broken(IntegrityError::Damaged(*skeleton).to_string()));
        }
        let model = weir_graph::OnnxModel::read_skeleton(Bytes::from(file))
            .map_err(|error| broken(error.to_string()))?;
        let own = model.signature();
        let inputs = positions(&own.inputs, &signature.inputs).map_err(&broken)?;
        let outputs = positions(&signature.outputs, &own.outputs).map_err(&broken)?;
        let weights = Weights::load(&gpu, &model, blobs).map_err(|error| match error {
            WeightsError::Transfer(error) => weights_failure(&error),
            error => broken(error.to_string()),
        })?;
        gpu.note_load();
        let shared = ModelShared {
            programs: Cache::new(PROGRAMS_MAX),
            weights,
            model,
            skeleton: *skeleton,
            precision: *precision,
            inputs,
            outputs,
            owner: owner(&id.tenant),
            id: id.clone(),
            gpu,
        };
        Ok(Self(Arc::new(shared)))
    }

    /// Returns the use of the pinned cache by the load.
    pub(crate) fn lookups(&self) -> PinnedLookups {
        self.0.weights.lookups()
    }

    /// Opens a session over the same weights.
    pub(crate) fn open_session(&self) -> CudaSession {
        CudaSession::new(self.0.clone())
    }
}

impl Model for CudaModel {
    fn footprint(&self) -> Footprint {
        let large = self.0.model.weights().iter().filter_map(|weight| match weight.data {
            WeightData::Elsewhere(hash) => Some((SharedPart { hash, family: None }, weight.bytes() as u64)),
            WeightData::Bytes(_) => None,
        });
        let small =
            self.0.model.weights().iter().filter(|weight| matches!(weight.data, WeightData::Bytes(_)));
        Footprint::new(small.map(|weight| weight.bytes() as u64).sum(), large)
    }

    fn is_arriving(&self) -> bool {
        !matches!(self.0.weights.are_usable(), Ok(true))
    }

    fn arrive(&self) -> Result<(), InferenceError> {
        let ModelShared { weights, gpu, .. } = &*self.0;
        weights.wait().map_err(|error| weights_failure(&error))?;
        self.0.verify()?;
        weights.pin(&gpu.pinned);
        gpu.map_ahead();
        Ok(())
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        Ok(Box::new(self.open_session()))
    }
}

impl ModelShared {
    /// Returns the position in the signature of each input of the graph.
    pub(crate) fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// Returns the bound program for inputs of these shapes, given in the order of the graph. The
    /// first call for a list of shapes takes some milliseconds, unless the device has the program.
    pub(crate) fn bound(&self, shapes: &[Shape]) -> Result<Arc<Bound>, InferenceError> {
        let compile = || {
            let Gpu { target, products, .. } = &*self.gpu;
            Program::compile(&self.model, shapes, self.precision, target, products.tier())
        };
        let make = || {
            let Self { skeleton, precision, .. } = *self;
            let key = ProgramKey { skeleton, precision, shapes: shapes.to_vec() };
            let program = self.gpu.programs.get(key, compile).map_err(|error| self.refused(&error))?;
            Bound::new(&self.gpu, program, &self.weights, self.owner).map(Arc::new)
        };
        let made = self.programs.try_get_with_by_ref(shapes, make);
        made.map_err(|error: Arc<InferenceError>| error.as_ref().clone())
    }

    /// Waits until the hashes of the model's files are verified.
    pub(crate) fn verify(&self) -> Result<(), InferenceError> {
        let verified = self.weights.verify();
        verified
            .map_err(|error| InferenceError::Load { model: self.id.clone(), why: error.to_string().into() })
    }

    fn refused(&self, error: &ModelProgramError) -> InferenceError {
        match error {
            // The input shapes are at fault.
            ModelProgramError::Graph(
                error @ (weir_graph::GraphError::Inputs(_) | weir_graph::GraphError::Invalid { .. }),
            ) => InferenceError::Refused(error.to_string().into()),
            // A bug of the compiler.
            ModelProgramError::Graph(error @ weir_graph::GraphError::Unsound(_)) => {
                InferenceError::Run(format!("model {}: {error}", self.id).into())
            }
            error => InferenceError::Unsupported(error.to_string().into()),
        }
    }
}

/// Returns the position of each port of `wanted` in `ports`, matched by name.
fn positions(wanted: &[Port], ports: &[Port]) -> Result<Vec<usize>, String> {
    let position = |port: &Port| {
        let found = ports.iter().position(|other| other.name == port.name);
        found.ok_or_else(|| format!("{:?} is not in both of its forms", port.name))
    };
    wanted.iter().map(position).collect()
}

/// Returns the memory owner for a tenant's runs.
pub(crate) fn owner(tenant: &TenantId) -> MemoryOwner {
    let hash = ContentHash::from_content(tenant.as_str().as_bytes()).to_string();
    MemoryOwner(u64::from_str_radix(hash.get(..15).unwrap_or_default(), 16).unwrap_or_default())
}
