//! A backend whose loads and runs behave as the test says, and a cache over it.

use parking_lot::Mutex;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::time::Duration;
use weir_device::{Arena, Buffer, Device};
use weir_inference::{
    Backend, CacheConfig, Footprint, InferenceError, Interrupt, Job, Model, ModelCache, ModelKey,
    ModelSource, Pin, Prepared, Profiles, Session, SharedPart, Tensor,
};
use weir_types::{
    Batching, ContentHash, ElementType, ModelId, Name, Port, Shape, Signature, TenantId, Version,
};

/// Far longer than any machine takes, so that only a hang fails.
const LONG: Duration = Duration::from_secs(60);

/// Bytes that models with a common backbone share.
pub(crate) const BACKBONE_BYTES: u64 = 20;

/// Outcome of the next load.
pub(crate) enum LoadBehaviour {
    Works,
    Fails,
    Panics,
}

/// Behaviour of the next run.
#[derive(Clone, Copy)]
pub(crate) enum RunBehaviour {
    Ends,
    WaitsToBeStopped,
    Panics,
}

/// Loads on the test's command, and records its calls.
struct Scripted {
    loads: Mutex<Receiver<LoadBehaviour>>,
    run: Arc<Mutex<RunBehaviour>>,
    /// Models in memory.
    loaded: Arc<AtomicUsize>,
    /// The first output requested by each run, in the order in which the runs began.
    began: Arc<Mutex<Vec<usize>>>,
}

impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Models with a dash in their name share the part before the dash: 20 bytes, present once.
    fn footprint(&self, source: &ModelSource) -> Footprint {
        let bytes = source.prepared.resident_bytes;
        match source.id().name.as_str().split_once('-') {
            None => Footprint::own(bytes),
            Some((backbone, _)) => {
                let part = SharedPart { hash: ContentHash::from_content(backbone.as_bytes()), family: None };
                Footprint::new(bytes - BACKBONE_BYTES, [(part, BACKBONE_BYTES)])
            }
        }
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        let load = self.loads.lock().recv().unwrap();
        match load {
            LoadBehaviour::Fails => {
                Err(InferenceError::Load { model: source.id().clone(), why: "as told".into() })
            }
            LoadBehaviour::Panics => panic!("as told"),
            LoadBehaviour::Works => {
                self.loaded.fetch_add(1, Ordering::SeqCst);
                Ok(Box::new(ScriptedModel {
                    footprint: self.footprint(source),
                    run: self.run.clone(),
                    loaded: self.loaded.clone(),
                    began: self.began.clone(),
                }))
            }
        }
    }
}

struct ScriptedModel {
    footprint: Footprint,
    run: Arc<Mutex<RunBehaviour>>,
    loaded: Arc<AtomicUsize>,
    began: Arc<Mutex<Vec<usize>>>,
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.loaded.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Model for ScriptedModel {
    fn footprint(&self) -> Footprint {
        self.footprint.clone()
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        Ok(Box::new(ScriptedSession { run: self.run.clone(), began: self.began.clone() }))
    }
}

struct ScriptedSession {
    run: Arc<Mutex<RunBehaviour>>,
    began: Arc<Mutex<Vec<usize>>>,
}

impl Session for ScriptedSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.began.lock().push(job.outputs[0]);
        let run = *self.run.lock();
        match run {
            RunBehaviour::Ends => {}
            RunBehaviour::WaitsToBeStopped => {
                assert!(interrupt.wait_timeout(LONG), "the run was never stopped");
            }
            RunBehaviour::Panics => panic!("as told"),
        }
        let nothing = Tensor::new(ElementType::Fp32, Shape::new(&[0]).unwrap(), Buffer::default()).unwrap();
        Ok(vec![nothing; job.outputs.len()])
    }
}

/// The cache, and the controls of its backend.
pub(crate) struct Fixture {
    pub(crate) cache: ModelCache,
    pub(crate) loads: Sender<LoadBehaviour>,
    pub(crate) run: Arc<Mutex<RunBehaviour>>,
    pub(crate) loaded: Arc<AtomicUsize>,
    pub(crate) began: Arc<Mutex<Vec<usize>>>,
}

impl Fixture {
    /// A cache with room for 100 bytes of models.
    pub(crate) fn new(slots: usize, run_queue_len_max: usize) -> Self {
        let (loads, waiting) = channel();
        let run = Arc::new(Mutex::new(RunBehaviour::Ends));
        let loaded = Arc::<AtomicUsize>::default();
        let began = Arc::<Mutex<Vec<usize>>>::default();
        let backend = Scripted {
            loads: Mutex::new(waiting),
            run: run.clone(),
            loaded: loaded.clone(),
            began: began.clone(),
        };
        let config = CacheConfig { capacity_bytes: 100, slots, run_queue_len_max };
        let cache =
            ModelCache::start(config, Arc::new(backend), Arena::new(1 << 20), Profiles::default()).unwrap();
        Self { cache, loads, run, loaded, began }
    }

    pub(crate) async fn load(&self, source: &Arc<ModelSource>, victims: &[ModelId]) -> Pin {
        self.loads.send(LoadBehaviour::Works).unwrap();
        self.acquire(source, victims).await.unwrap()
    }

    pub(crate) async fn acquire(
        &self,
        source: &Arc<ModelSource>,
        victims: &[ModelId],
    ) -> Result<Pin, InferenceError> {
        tokio::time::timeout(LONG, self.cache.acquire(source, victims)).await.expect("the acquire hangs")
    }

    pub(crate) fn resident(&self) -> Vec<String> {
        self.cache.resident().into_iter().map(|model| model.id.name.to_string()).collect()
    }

    pub(crate) fn loaded(&self) -> usize {
        self.loaded.load(Ordering::SeqCst)
    }

    pub(crate) fn runs(&self, run: RunBehaviour) {
        *self.run.lock() = run;
    }
}

pub(crate) fn source(name: &str, resident_bytes: u64) -> Arc<ModelSource> {
    let id = ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) };
    let output = |name: &str| Port { name: name.to_owned(), datatype: ElementType::Fp32, shape: vec![None] };
    let signature = Signature { inputs: Vec::new(), outputs: vec![output("first"), output("second")] };
    let prepared = Prepared {
        signature,
        weight_bytes: 0,
        resident_bytes,
        variants: Vec::new(),
        unsupported: Vec::new(),
    };
    let key = ModelKey { id, generation: 1 };
    Arc::new(ModelSource {
        key,
        prepared: Arc::new(prepared),
        blobs: PathBuf::new(),
        slots: None,
        batching: Batching::default(),
        meter: weir_inference::Meter::default(),
    })
}

/// The same model after it was deleted and pushed again.
pub(crate) fn pushed_again(source: &ModelSource) -> Arc<ModelSource> {
    let key = ModelKey { generation: source.key.generation + 1, ..source.key.clone() };
    Arc::new(ModelSource { key, ..source.clone() })
}

/// Polls a future once, so that it has begun.
pub(crate) async fn begin<F: Future>(future: &mut std::pin::Pin<&mut F>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}
