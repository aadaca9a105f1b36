//! State shared by the connections of a worker: the device, its models and its sessions.

use super::exports::Exports;
use super::fetching::fetch;
use super::importing::{NotReached, import};
use super::staying::{Stayed, Staying};
use super::window::RunIo;
use crate::GpuFiles;
use crate::device::{Gpu, GpuConfig};
use crate::failure::failure;
use crate::model::{CudaModel, ModelFiles, owner};
use crate::session::{CudaSession, FinishedRun};
use weir_worker::{ActiveRuns, ConnectionFiles, Forecast, ServedConnection, WireError};

use crate::worker::message::{
    self, FILES_MAX, GpuWorkerReply, GpuWorkerRequest, MemoryPressure, MemoryReport, Opened, TensorRange,
    WorkerInput,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use weir_child::raise_open_files;
use weir_device::Arena;
use weir_device::cuda::{Devices, ExportedMemory, Search};
use weir_inference::{InferenceError, Model};
use weir_types::TenantId;

/// Arena for tensors outside the connections' memory, in bytes. Runs need no such tensors.
const ARENA_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of tensors to move per answer. The next answer reports the remaining tensors.
const BEYOND_MAX: usize = 16;

/// Device, once it is open, and its models and sessions.
#[derive(Default)]
pub(super) struct Service {
    gpu: OnceLock<Arc<Gpu>>,
    models: Mutex<HashMap<u64, Arc<CudaModel>>>,
    sessions: Mutex<HashMap<u64, Arc<Mutex<CudaSession>>>>,
    runs: ActiveRuns,
    exports: Exports,
    /// Dropped before the device with the tensors.
    staying: Staying,
}

/// Answer, and the files to send after it.
pub(super) type Reply = (GpuWorkerReply, Vec<OwnedFd>);

impl Service {
    /// Answers the requests of a connection until it closes.
    pub(super) fn attend(&self, mut connection: ServedConnection, files: &ConnectionFiles) -> io::Result<()> {
        let mut requests = Forecast::default();
        while let Some(request) = connection.receive::<GpuWorkerRequest>(&mut requests)? {
            let count = request.files();
            if count > FILES_MAX {
                return Err(io::Error::other(format!("{count} files are too many for a message")));
            }
            let brought = connection.receive_files(count)?;
            let replied = self.reply(request, files, brought);
            let failed = |error| {
                let memory = self.gpu.get().map(|gpu| {
                    // If the measurement fails, the next request fails as well, and reports the
                    // reason.
                    _ = gpu.measure();
                    MemoryReport::new(gpu)
                });
                (GpuWorkerReply::Failed { failure: WireError::from_error(&error), memory }, Vec::new())
            };
            let (answer, sent) = replied.unwrap_or_else(failed);
            connection.reply(&answer)?;
            connection.send_files(&sent.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Cancels a run.
    pub(super) fn cancel(&self, run: u64) {
        self.runs.cancel(run);
    }

    /// Answers a request. `brought` has the files of the request, or is `None` if not all of them
    /// could be opened.
    pub(super) fn reply(
        &self,
        request: GpuWorkerRequest,
        files: &ConnectionFiles,
        brought: Option<Vec<OwnedFd>>,
    ) -> Result<Reply, InferenceError> {
        let answered: Result<GpuWorkerReply, InferenceError> = match request {
            GpuWorkerRequest::Open { driver, gpu } => self.open(driver, &gpu),
            GpuWorkerRequest::Load { model, files } => self.load(model, &files),
            GpuWorkerRequest::Arrive { model } => {
                let model = self.models.lock().get(&model).cloned().ok_or_else(unknown)?;
                model.arrive().map(|()| GpuWorkerReply::Done)
            }
            GpuWorkerRequest::Unload { model } => {
                // Freed outside the lock.
                let gone = self.models.lock().remove(&model);
                drop(gone);
                Ok(GpuWorkerReply::Done)
            }
            GpuWorkerRequest::Session { model, session } => {
                let model = self.models.lock().get(&model).cloned().ok_or_else(unknown)?;
                self.sessions.lock().insert(session, Arc::new(Mutex::new(model.open_session())));
                Ok(GpuWorkerReply::Done)
            }
            GpuWorkerRequest::Forget { session } => {
                let gone = self.sessions.lock().remove(&session);
                drop(gone);
                Ok(GpuWorkerReply::Done)
            }
            GpuWorkerRequest::Run { session, run, inputs, outputs, outputs_at } => {
                self.run((session, run), (&inputs, brought), outputs, (files, outputs_at))
            }
            GpuWorkerRequest::Fetch { tensor, tenant } => {
                let bytes = fetch(&*self.staying.get(tensor)?, &tenant, &files.memory)?;
                Ok(GpuWorkerReply::Fetched { bytes })
            }
            GpuWorkerRequest::Export { tensor, tenant, export, blocks_max } => {
                return self.export(tensor, &tenant, export, blocks_max);
            }
            GpuWorkerRequest::Take { tensor, tenant, exported } => {
                self.take(tensor, &tenant, &exported, brought)
            }
            GpuWorkerRequest::Release { tensors, abandoned, exports } => {
                self.exports.end(&exports);
                self.staying.release(&tensors, &abandoned);
                Ok(GpuWorkerReply::Done)
            }
            GpuWorkerRequest::Trim => {
                self.gpu()?.trim();
                Ok(GpuWorkerReply::Done)
            }
        };
        Ok((answered?, Vec::new()))
    }

    fn open(&self, driver: PathBuf, config: &GpuConfig) -> Result<GpuWorkerReply, InferenceError> {
        let search = Search { driver: Some(driver), ..Search::default() };
        let cannot = |error: &dyn std::fmt::Display| InferenceError::DeviceLost(error.to_string().into());
        let devices = Devices::discover(&search).map_err(|error| cannot(&error))?;
        // The node raises the hard limit. If the limit is too low, tensors of peer devices go
        // through the host.
        let files = GpuFiles::new(devices.infos().len() as u64, config.slots as u64).worker;
        raise_open_files(files).map_err(|error| cannot(&error))?;
        let mut gpu =
            Gpu::open(&devices, config, &Arena::new(ARENA_BYTES_MAX)).map_err(|error| cannot(&error))?;
        // When the first model loads, the kernels are loaded or being loaded.
        gpu.kernels.load_ahead();
        gpu.products.prepare_ahead();
        // If the query fails, tensors go through the host.
        let siblings = devices.siblings(config.ordinal).unwrap_or_default();
        let name = gpu.context.info().name.clone();
        let library = gpu.products.state().clone();
        let compiler = gpu.chains.state().clone();
        let memory = MemoryReport::new(&gpu);
        let gpu = Arc::new(gpu);
        let opened = self.gpu.set(gpu.clone());
        opened.map_err(|_| InferenceError::Run("the device is held already".into()))?;
        gpu.keep_elastic().map_err(|error| cannot(&error))?;
        Ok(GpuWorkerReply::Opened(Opened { name, siblings, library, compiler, memory }))
    }

    fn load(&self, number: u64, files: &ModelFiles) -> Result<GpuWorkerReply, InferenceError> {
        let gpu = self.gpu()?;
        // Other processes may have allocated device memory since the last measurement.
        gpu.measure().map_err(|error| failure(&error))?;
        let model = match CudaModel::load(gpu.clone(), files) {
            // Weights have priority over device-resident intermediates.
            Err(InferenceError::RunOutOfMemory(_)) if gpu.give_up(u64::MAX) => {
                CudaModel::load(gpu.clone(), files)?
            }
            loaded => loaded?,
        };
        let footprint = model.footprint();
        let is_arriving = model.is_arriving();
        let lookups = model.lookups();
        self.models.lock().insert(number, Arc::new(model));
        let weights = footprint.parts().iter().map(|(part, bytes)| (part.hash, *bytes)).collect();
        let memory = MemoryReport::new(&gpu);
        Ok(GpuWorkerReply::Loaded { own_bytes: footprint.own_bytes(), weights, is_arriving, lookups, memory })
    }

    fn run(
        &self,
        (session, run): (u64, u64),
        (inputs, brought): (&[WorkerInput], Option<Vec<OwnedFd>>),
        outputs: Vec<(usize, Option<u64>)>,
        (files, outputs_at): (&ConnectionFiles, u64),
    ) -> Result<GpuWorkerReply, InferenceError> {
        let session = self.sessions.lock().get(&session).cloned().ok_or_else(unknown)?;
        let run = self.runs.begin(run);
        let mut session = session.lock();
        let (wanted, numbers): (Vec<usize>, Vec<_>) = outputs.into_iter().unzip();
        let gpu = self.gpu()?;
        let staying = &self.staying;
        let elsewhere = inputs.iter().filter_map(|input| match input {
            WorkerInput::Exported(exported) => Some(exported),
            WorkerInput::Here(_) | WorkerInput::Stayed(_) => None,
        });
        let imported = match import(&gpu, elsewhere, brought)? {
            Ok(imported) => imported,
            Err(NotReached { ordinal, why }) => return Ok(GpuWorkerReply::NotReached { ordinal, why }),
        };
        let mut window =
            RunIo::new((&gpu, staying), session.owner(), files, (inputs, imported), (numbers, outputs_at))?;
        let FinishedRun { time, was_cold, not_captured } =
            session.exchange(&mut window, &wanted, run.interrupt())?;
        drop(session);
        let device_time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let through_host_bytes = window.through_host_bytes();
        let outputs = window.into_outputs(staying)?;
        let beyond = staying.numbers_of(&gpu.intermediates.beyond(BEYOND_MAX));
        let room = MemoryPressure { beyond, spilled_bytes: gpu.intermediates.take_spilled_bytes() };
        let memory = MemoryReport::new(&gpu);
        Ok(GpuWorkerReply::Ran {
            outputs,
            device_time_ns,
            was_cold,
            through_host_bytes,
            room,
            not_captured,
            memory,
        })
    }

    fn take(
        &self,
        tensor: u64,
        tenant: &TenantId,
        exported: &message::ExportedInput,
        brought: Option<Vec<OwnedFd>>,
    ) -> Result<GpuWorkerReply, InferenceError> {
        let gpu = self.gpu()?;
        let imported = match import(&gpu, [exported], brought)? {
            Ok(imported) => imported,
            Err(NotReached { ordinal, why }) => return Ok(GpuWorkerReply::NotReached { ordinal, why }),
        };
        let mapped = imported.first().ok_or_else(unknown)?;
        match Stayed::take_in(&gpu, owner(tenant), &exported.shape, mapped.span())? {
            Some(stayed) => {
                self.staying.add(tensor, stayed);
                Ok(GpuWorkerReply::Done)
            }
            None => Ok(GpuWorkerReply::NotTaken { why: "there is no room".to_owned() }),
        }
    }

    fn export(
        &self,
        tensor: u64,
        tenant: &TenantId,
        export: u64,
        blocks_max: usize,
    ) -> Result<Reply, InferenceError> {
        let stayed = self.staying.get(tensor)?;
        Ok(match self.exports.begin(export, stayed, owner(tenant), blocks_max.min(FILES_MAX))? {
            Ok(ExportedMemory { blocks, offset, bytes }) => {
                (GpuWorkerReply::Exported(TensorRange { blocks: blocks.len(), offset, bytes }), blocks)
            }
            Err(why) => (GpuWorkerReply::NotExported { why }, Vec::new()),
        })
    }

    pub(super) fn gpu(&self) -> Result<Arc<Gpu>, InferenceError> {
        let gpu = self.gpu.get().cloned();
        gpu.ok_or_else(|| InferenceError::Unavailable("the device is not held yet".into()))
    }
}

fn unknown() -> InferenceError {
    InferenceError::Unavailable("the worker does not know it".into())
}
