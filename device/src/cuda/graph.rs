//! CUDA graphs: work that is recorded once and launched repeatedly as a whole.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::CudaError;
use super::stream::Stream;
use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUstreamCaptureMode_enum as CaptureMode,
    CUstreamCaptureStatus_enum as CaptureStatus, CUstreamUpdateCaptureDependencies_flags as Dependencies,
};
use std::marker::PhantomData;
use std::sync::Arc;
use std::{ptr, slice};

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
///
/// By default, recorded work is ordered like the work of a stream: each piece follows the piece
/// before it. [`Self::follow`] selects other predecessors, so that independent work of one stream
/// becomes parallel branches of the graph.
#[derive(Debug)]
pub struct Recording<'a> {
    stream: &'a Stream,
    is_open: bool,
}

/// Piece of recorded work that later work of the same recording can follow: the nodes of the graph
/// that end it.
#[derive(Debug)]
pub struct RecordedWork<'r> {
    nodes: Vec<CUgraphNode>,
    /// The driver's data of the edge that starts at each node.
    edges: Vec<CUgraphEdgeData>,
    /// The nodes live as long as the recording.
    recording: PhantomData<&'r ()>,
}

impl Stream {
    /// Records the work that `work` adds to this stream, and to streams that wait for its events,
    /// instead of running it. Those streams must rejoin this one, by events that it waits for,
    /// before `work` ends. In the meantime the calling thread must neither wait for the device nor
    /// allocate.
    ///
    /// On error no work was run, and unless the context is lost the stream accepts work as before.
    pub fn capture<E: From<CudaError>>(
        &self,
        work: impl FnOnce(&Recording<'_>) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let recording = Recording::begin(self)?;
        work(&recording)?;
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

    /// The stream that records.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// The work that the next piece follows unless [`Self::follow`] changes it: the piece recorded
    /// last.
    pub fn last(&self) -> Result<RecordedWork<'_>, CudaError> {
        let mut status = CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32;
        let mut nodes = ptr::null();
        let mut edges = ptr::null();
        let mut count = 0;
        let id = ptr::null_mut();
        let graph = ptr::null_mut();
        // SAFETY: the handle is valid until the drop; the results outlive the call, and the id and
        // the graph are optional.
        self.stream.context().call(|driver| unsafe {
            let stream = self.stream.handle();
            driver.cuStreamGetCaptureInfo_v3(
                stream,
                &mut status,
                id,
                graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
        })?;
        if status != CaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32 {
            return Err(CudaError::Invalid("the recording is invalid".to_owned()));
        }
        // SAFETY: the driver's lists have this length, and are valid until the stream's next call.
        let (nodes, edges) = unsafe { (copied(nodes, count), copied(edges, count)) };
        Ok(RecordedWork { nodes, edges, recording: PhantomData })
    }

    /// Makes the next piece follow these pieces of the same recording, and no others. Without a
    /// piece, it can start at once.
    pub fn follow<'r>(
        &'r self,
        pieces: impl IntoIterator<Item = &'r RecordedWork<'r>>,
    ) -> Result<(), CudaError> {
        let mut nodes = Vec::new();
        let mut edges = Vec::new();
        for piece in pieces {
            nodes.extend(&piece.nodes);
            edges.extend(&piece.edges);
        }
        let flags = Dependencies::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        // Without edge data, all edges are full dependencies.
        let edges = if edges.len() == nodes.len() { edges.as_ptr() } else { ptr::null() };
        // SAFETY: the handle is valid until the drop; the nodes belong to a recording that is still
        // open; the lists have the given length, and the driver copies them.
        self.stream.context().call(|driver| unsafe {
            let stream = self.stream.handle();
            driver.cuStreamUpdateCaptureDependencies_v2(stream, nodes.as_mut_ptr(), edges, nodes.len(), flags)
        })
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

/// Copies a list of the driver, which is null if it is empty.
///
/// # Safety
/// A list that is not null has `count` elements.
unsafe fn copied<T: Copy>(list: *const T, count: usize) -> Vec<T> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(list, count) }.to_vec()
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
