//! Work that is given as a whole, again and again.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::CudaError;
use super::stream::Stream;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode_enum as CaptureMode};
use std::ptr;
use std::sync::Arc;

/// Work that a stream was given while it was recorded, with its order.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: CUgraph,
}

/// A [`Graph`] made ready: launched with one call, however much work it is.
#[derive(Debug)]
pub struct GraphExec {
    context: Arc<Context>,
    handle: CUgraphExec,
}

// SAFETY: the handle of a graph may be used by any thread, but by one at a time: no method that changes it takes it shared.
unsafe impl Send for Graph {}
// SAFETY: the handle of an executable graph may be used by any thread, but by one at a time, and is not `Sync`.
unsafe impl Send for GraphExec {}

/// A stream that records its work into a graph instead of running it. Dropping it aborts the recording, and the stream can be used again.
struct Recording<'a> {
    stream: &'a Stream,
    is_open: bool,
}

impl Stream {
    /// Record what `work` gives to this stream, and to others that it makes wait for events of this one, instead of doing it. Others have joined it
    /// again, by events that this one waits for, when `work` ends. Meanwhile the calling thread neither waits for the device nor allocates.
    ///
    /// On error nothing was done, and unless the context is lost the stream takes work as before.
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

    /// End the recording, also one that an error has made invalid: until then the stream takes no other work.
    fn close(&self) -> (Result<(), CudaError>, Option<Graph>) {
        let (context, mut handle) = (self.stream.context(), ptr::null_mut());
        // SAFETY: the stream's handle is valid until its drop; `handle` outlives the call; what is created is destroyed on drop.
        let ended =
            context.call(|driver| unsafe { driver.cuStreamEndCapture(self.stream.handle(), &mut handle) });
        (ended, (!handle.is_null()).then(|| Graph { context: Arc::clone(context), handle }))
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
    /// How many pieces of work it has.
    pub fn len(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        self.context.call(|driver| {
            // SAFETY: without room for nodes, only the count is written; it outlives the call.
            unsafe { driver.cuGraphGetNodes(self.handle, ptr::null_mut(), &mut count) }
        })?;
        Ok(count)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> Result<bool, CudaError> {
        Ok(self.len()? == 0)
    }

    /// Make it ready to be launched. The graph is not needed any more then.
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        let mut executable = ptr::null_mut();
        self.context.call(|driver| {
            // SAFETY: `executable` outlives the call; what is created is destroyed on drop.
            unsafe { driver.cuGraphInstantiateWithFlags(&mut executable, self.handle, 0) }
        })?;
        Ok(GraphExec { context: Arc::clone(&self.context), handle: executable })
    }
}

impl GraphExec {
    /// Bring it to the device, so that the first launch does not have to.
    pub fn upload(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners; `&mut` keeps other threads out.
        self.context.call(|driver| unsafe { driver.cuGraphUpload(self.handle, stream.handle()) })
    }

    /// Do all of its work in the order of `stream`. Launches of one graph come one after the other, whatever their streams.
    ///
    /// # Safety
    /// Everything that the work uses, functions and memory, lives until it is done, at the addresses that it was recorded with; as for
    /// [`Stream::launch`].
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners; `&mut` keeps other threads out; the rest is the caller's part.
        self.context.call(|driver| unsafe { driver.cuGraphLaunch(self.handle, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by a capture; executables made of it are on their own.
        self.context.release("graph", |driver| unsafe { driver.cuGraphDestroy(self.handle) });
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: created in `instantiate`; the driver finishes launches that are under way.
        self.context.release("executable graph", |driver| unsafe { driver.cuGraphExecDestroy(self.handle) });
    }
}
