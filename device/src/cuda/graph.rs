//! CUDA graphs: work that is recorded once and launched repeatedly as a whole.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::CudaError;
use super::stream::Stream;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode_enum as CaptureMode};
use std::ptr;
use std::sync::Arc;

/// Work that was recorded from a stream, with its order.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: CUgraph,
}

/// An instantiated [`Graph`]: launched with one call, whatever its size.
#[derive(Debug)]
pub struct GraphExec {
    context: Arc<Context>,
    handle: CUgraphExec,
}

// SAFETY: the handle of a graph may be used by any thread, but by one at a time: no method that
// changes it takes `&self`.
unsafe impl Send for Graph {}
// SAFETY: the handle of an executable graph may be used by any thread, but by one at a time; the
// type is not `Sync`.
unsafe impl Send for GraphExec {}

/// A stream that records its work into a graph instead of running it. Dropping the recording aborts
/// it, and the stream can be used again.
struct Recording<'a> {
    stream: &'a Stream,
    is_open: bool,
}

impl Stream {
    /// Records the work that `work` adds to this stream, and to streams that wait for its events,
    /// instead of running it. Those streams must rejoin this one, by events that it waits for,
    /// before `work` ends. In the meantime the calling thread must neither wait for the device nor
    /// allocate.
    ///
    /// On error no work was run, and unless the context is lost the stream accepts work as before.
    pub fn capture<E: From<CudaError>>(&self, work: impl FnOnce(&Self) -> Result<(), E>) -> Result<Graph, E> {
        let recording = Recording::begin(self)?;
        work(self)?;
        Ok(recording.end()?)
    }
}

impl<'a> Recording<'a> {
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is valid until the drop.
        stream.context().call(|driver| unsafe { driver.cuStreamBeginCapture_v2(stream.handle(), mode) })?;
        Ok(Self { stream, is_open: true })
    }

    /// Ends the recording and returns the graph.
    fn end(mut self) -> Result<Graph, CudaError> {
        self.is_open = false;
        let (ended, graph) = self.close();
        ended?;
        graph.ok_or_else(|| CudaError::Invalid("nothing was recorded".to_owned()))
    }

    /// Ends the recording, even if an error has made it invalid: until then the stream accepts no
    /// other work.
    fn close(&self) -> (Result<(), CudaError>, Option<Graph>) {
        let context = self.stream.context();
        let mut handle = ptr::null_mut();
        // SAFETY: the stream's handle is valid until its drop; `handle` outlives the call; the
        // created graph is destroyed on drop.
        let ended =
            context.call(|driver| unsafe { driver.cuStreamEndCapture(self.stream.handle(), &mut handle) });
        (ended, (!handle.is_null()).then(|| Graph { context: context.clone(), handle }))
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // The driver reports once more why the recording is invalid.
            drop(self.close());
        }
    }
}

impl Graph {
    /// Number of nodes.
    pub fn len(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        self.context.call(|driver| {
            // SAFETY: without room for nodes, only the count is written; it outlives the call.
            unsafe { driver.cuGraphGetNodes(self.handle, ptr::null_mut(), &mut count) }
        })?;
        Ok(count)
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> Result<bool, CudaError> {
        Ok(self.len()? == 0)
    }

    /// Instantiates the graph for launches. The graph may be dropped afterwards.
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        let mut executable = ptr::null_mut();
        self.context.call(|driver| {
            // SAFETY: `executable` outlives the call; the created object is destroyed on drop.
            unsafe { driver.cuGraphInstantiateWithFlags(&mut executable, self.handle, 0) }
        })?;
        Ok(GraphExec { context: self.context.clone(), handle: executable })
    }
}

impl GraphExec {
    /// Uploads the graph to the device, so that the first launch does not have to.
    pub fn upload(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners; `&mut` excludes other threads.
        self.context.call(|driver| unsafe { driver.cuGraphUpload(self.handle, stream.handle()) })
    }

    /// Launches all of the graph's work in the order of `stream`. Launches of one graph run one
    /// after another, on any streams.
    ///
    /// # Safety
    /// All functions and memory that the work uses live until it is done, at the addresses that
    /// were recorded; as for [`Stream::launch`].
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners; `&mut` excludes other threads;
        // the rest is guaranteed by the caller.
        self.context.call(|driver| unsafe { driver.cuGraphLaunch(self.handle, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by a capture; executable graphs made from it are independent.
        self.context.release("graph", |driver| unsafe { driver.cuGraphDestroy(self.handle) });
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: created in `instantiate`; the driver finishes current launches.
        self.context.release("executable graph", |driver| unsafe { driver.cuGraphExecDestroy(self.handle) });
    }
}
