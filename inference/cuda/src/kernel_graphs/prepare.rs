//! Preparation of pushed kernel graphs.

use super::compile::{self, CompileLimits};
use std::io;
use std::path::Path;
use std::sync::Arc;
use weir_inference::{Content, PrepareError, Prepared, Preparer, Unsupported, UploadRefusal, Variant};
use weir_kernel_graph::{Bundle, KernelGraph, KernelGraphError, UPLOAD_BYTES_MAX, check_source};
use weir_types::{ContentHash, Platform, Precision};

/// Limits of the preparation.
#[derive(Debug, Clone, Copy)]
pub struct KernelGraphPreparerConfig {
    /// Maximum memory of the process that compiles CUDA C, in bytes.
    pub compile_memory_bytes_max: u64,
    /// Maximum CPU time of the process that compiles CUDA C, in milliseconds.
    pub compile_cpu_ms_max: u64,
}

/// Preparer that checks kernel graphs, and compiles their CUDA C sources. The result is one file:
/// the graph with PTX sources.
#[derive(Debug)]
pub struct KernelGraphPreparer(KernelGraphPreparerConfig);

impl KernelGraphPreparer {
    /// Creates a preparer with these limits.
    #[must_use]
    pub fn new(config: KernelGraphPreparerConfig) -> Self {
        Self(config)
    }
}

#[async_trait::async_trait]
impl Preparer for KernelGraphPreparer {
    async fn prepare(&self, file: &Path, _: Precision, out: &Path) -> Result<Prepared, PrepareError> {
        let file = file.to_owned();
        let out = out.to_owned();
        let mut bundle = blocking(move || read(&file)).await?;
        let limits = CompileLimits {
            memory_bytes_max: self.0.compile_memory_bytes_max,
            cpu_ms_max: self.0.compile_cpu_ms_max,
        };
        let sources: Vec<(String, String)> =
            bundle.to_compile().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        if !sources.is_empty() {
            for (name, ptx) in compile::compile(sources, limits).await? {
                bundle.sources.remove(&name);
                // `a.cu` becomes `a.cu.ptx`, so that errors name the original source.
                bundle.sources.insert(format!("{name}.ptx"), ptx);
            }
        }
        blocking(move || store(bundle, &out)).await
    }
}

/// Runs blocking work on an upload outside the async runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let failed = |error| PrepareError::Io {
        action: "check a kernel graph".to_owned(),
        source: Arc::new(io::Error::other(error)),
    };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn read(file: &Path) -> Result<Bundle, PrepareError> {
    let unreadable = |error| PrepareError::io("read", file, error);
    let len = std::fs::metadata(file).map_err(unreadable)?.len();
    if len > UPLOAD_BYTES_MAX as u64 {
        return Err(refused(&KernelGraphError::TooLarge(usize::try_from(len).unwrap_or(usize::MAX))));
    }
    let bundle = Bundle::parse(&std::fs::read(file).map_err(unreadable)?).map_err(|error| refused(&error))?;
    for (name, text) in bundle.to_compile() {
        check_source(name, text).map_err(|error| refused(&error))?;
    }
    Ok(bundle)
}

/// Checks a graph whose sources are all PTX, and writes it to the folder `out`.
pub fn store(bundle: Bundle, out: &Path) -> Result<Prepared, PrepareError> {
    let json = serde_json::to_vec(&bundle).map_err(|error| refused(&error))?;
    // The graph is checked again, because PTX in place of CUDA C can exceed the size limit.
    if json.len() > UPLOAD_BYTES_MAX {
        return Err(refused(&KernelGraphError::TooLarge(json.len())));
    }
    let graph = KernelGraph::new(bundle).map_err(|error| refused(&error))?;
    let skeleton = ContentHash::from_content(&json);
    let path = out.join(skeleton.to_string());
    std::fs::write(&path, &json).map_err(|error| PrepareError::io("write", &path, error))?;
    let code_bytes: usize = graph.modules().iter().map(|(_, ptx)| ptx.len()).sum();
    let bytes = (code_bytes + graph.constants().len()) as u64;
    let variant = Variant {
        platform: Platform::Cuda,
        content: Content::KernelGraph,
        only_on: None,
        skeleton,
        weights: Vec::new(),
        placeholder: None,
        precision: Precision::default(),
        weight_bytes: bytes,
        resident_bytes: bytes,
        session_bytes: None,
    };
    Ok(Prepared {
        signature: graph.signature(),
        weight_bytes: bytes,
        resident_bytes: bytes,
        variants: vec![variant],
        unsupported: vec![Unsupported {
            platform: Platform::Cpu,
            why: "it is made of kernels for GPUs".to_owned(),
        }],
    })
}

fn refused(why: &dyn std::fmt::Display) -> PrepareError {
    UploadRefusal::KernelGraph { why: why.to_string() }.into()
}
