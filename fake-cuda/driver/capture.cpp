// Stream capture and graphs.
#include "fake.h"

namespace fake {

bool forbidden_in_capture(const char* call) {
    bool found = false;
    for (Capture* capture : state().captures) {
        if (capture->thread != std::this_thread::get_id()) continue;
        capture->invalidated = true;
        state().violation(std::string(call) + " while its thread records a stream");
        found = true;
    }
    return found;
}

Result record(Stream* stream, Work work) {
    Capture* capture = stream->capture;
    if (capture->invalidated) return STREAM_CAPTURE_INVALIDATED;
    if (is_to_fail("fail_captured_launch")) {
        capture->invalidated = true;
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    capture->graph->nodes.push_back({std::move(work), stream->tail});
    stream->tail = {capture->graph->nodes.size() - 1};
    return SUCCESS;
}

bool is_to_fail(const char* setting) {
    uint64_t& left = state().settings.failing.at(setting);
    if (left == 0) return false;
    left--;
    return true;
}

// Run the nodes in any order that their dependencies allow.
static Result run(const Graph& graph) {
    std::set<size_t> left, done;
    for (size_t i = 0; i < graph.nodes.size(); i++) left.insert(i);
    while (!left.empty()) {
        std::vector<size_t> ready;
        for (size_t i : left) {
            bool free = true;
            for (size_t before : graph.nodes[i].after) free &= done.count(before) == 1;
            if (free) ready.push_back(i);
            // Most graphs are chains, so looking at a few ready nodes is enough.
            if (ready.size() == 8) break;
        }
        const size_t next = ready[state().settings.seed == 0 ? 0 : state().chance() % ready.size()];
        if (const Result result = graph.nodes[next].work.run()) return result;
        left.erase(next);
        done.insert(next);
    }
    return SUCCESS;
}

}  // namespace fake

using namespace fake;

CUDA_API cuStreamBeginCapture_v2(Stream* stream, int) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamBeginCapture")) return INVALID_HANDLE;
    if (stream->capture != nullptr) return STREAM_CAPTURE_UNMATCHED;
    if (is_to_fail("fail_begin_capture")) return STREAM_CAPTURE_UNSUPPORTED;
    auto* graph = new Graph{stream->device, {}};
    auto* capture = new Capture{graph, stream, std::this_thread::get_id(), false, {stream}};
    state().captures.insert(capture);
    stream->capture = capture;
    stream->tail.clear();
    return SUCCESS;
}

CUDA_API cuStreamGetCaptureInfo_v3(Stream* stream, int* status, uint64_t*, Graph**, void* const** nodes, void** edges, size_t* count) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamGetCaptureInfo")) return INVALID_HANDLE;
    if (is_to_fail("fail_capture_info")) return NOT_SUPPORTED;
    Capture* capture = stream->capture;
    // CU_STREAM_CAPTURE_STATUS_NONE, ACTIVE and INVALIDATED.
    *status = capture == nullptr ? 0 : capture->invalidated ? 2 : 1;
    if (*status != 1) return SUCCESS;
    capture->shown.clear();
    // The handle of a node is its number, counted from 1.
    for (size_t node : stream->tail) capture->shown.push_back(reinterpret_cast<void*>(node + 1));
    *nodes = capture->shown.data();
    *edges = nullptr;
    *count = capture->shown.size();
    return SUCCESS;
}

CUDA_API cuStreamUpdateCaptureDependencies_v2(Stream* stream, void** nodes, const void*, size_t count, unsigned flags) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamUpdateCaptureDependencies")) return INVALID_HANDLE;
    Capture* capture = stream->capture;
    if (capture == nullptr || capture->invalidated) return capture == nullptr ? ILLEGAL_STATE : STREAM_CAPTURE_INVALIDATED;
    if (is_to_fail("fail_capture_dependencies")) return NOT_SUPPORTED;
    // Only CU_STREAM_SET_CAPTURE_DEPENDENCIES.
    if (flags != 1) return NOT_SUPPORTED;
    std::set<size_t> tail;
    for (size_t i = 0; i < count; i++) {
        const size_t node = reinterpret_cast<size_t>(nodes[i]) - 1;
        if (node >= capture->graph->nodes.size()) return INVALID_VALUE;
        tail.insert(node);
    }
    // Work that the caller takes out of the order of the stream need not join it again.
    capture->released.insert(stream->tail.begin(), stream->tail.end());
    stream->tail = std::move(tail);
    return SUCCESS;
}

CUDA_API cuStreamEndCapture(Stream* stream, Graph** graph) {
    Call call(true);
    if (call.result) return call.result;
    *graph = nullptr;
    if (!known(stream, "cuStreamEndCapture")) return INVALID_HANDLE;
    Capture* capture = stream->capture;
    if (capture == nullptr || capture->origin != stream) return STREAM_CAPTURE_UNMATCHED;
    if (capture->thread != std::this_thread::get_id()) return STREAM_CAPTURE_WRONG_THREAD;
    // The nodes captured from other streams must be dependencies of the origin stream's work.
    std::set<size_t> joined;
    std::vector<size_t> look(stream->tail.begin(), stream->tail.end());
    look.insert(look.end(), capture->released.begin(), capture->released.end());
    while (!look.empty()) {
        const size_t node = look.back();
        look.pop_back();
        if (!joined.insert(node).second) continue;
        for (size_t before : capture->graph->nodes[node].after) look.push_back(before);
    }
    const bool unjoined = joined.size() != capture->graph->nodes.size();
    for (Stream* of : capture->streams) {
        if (!state().streams.count(of)) continue;
        of->capture = nullptr;
        of->tail.clear();
    }
    Result result = call.device->fault;
    if (!result && (capture->invalidated || is_to_fail("fail_end_capture"))) result = STREAM_CAPTURE_INVALIDATED;
    if (!result && unjoined) result = STREAM_CAPTURE_UNJOINED;
    if (result) {
        delete capture->graph;
    } else {
        *graph = capture->graph;
        state().graphs.insert(*graph);
    }
    state().captures.erase(capture);
    delete capture;
    return result;
}

CUDA_API cuGraphGetNodes(Graph* graph, void** nodes, size_t* count) {
    Call call;
    if (call.result) return call.result;
    if (!state().graphs.count(graph)) return INVALID_HANDLE;
    if (nodes != nullptr) return NOT_SUPPORTED;
    *count = graph->nodes.size();
    return SUCCESS;
}

CUDA_API cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    Call call;
    if (call.result) return call.result;
    if (!state().graphs.count(graph)) return INVALID_HANDLE;
    if (is_to_fail("fail_instantiate")) return OUT_OF_MEMORY;
    const uint64_t bytes = state().settings.graph_bytes;
    if (const Result result = allocate_outside(graph->device, bytes)) return result;
    *executable = new Graph(*graph);
    (*executable)->bytes = bytes;
    state().executables.insert(*executable);
    return SUCCESS;
}

CUDA_API cuGraphUpload(Graph* executable, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!state().executables.count(executable) || !known(stream, "cuGraphUpload")) return INVALID_HANDLE;
    return SUCCESS;
}

CUDA_API cuGraphLaunch(Graph* executable, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!state().executables.count(executable) || !known(stream, "cuGraphLaunch")) return INVALID_HANDLE;
    if (executable->device != stream->device) return INVALID_HANDLE;
    if (stream->capture != nullptr) return NOT_SUPPORTED;
    if (is_to_fail("fail_graph_launch")) return OUT_OF_MEMORY;
    state().counts["graph_launches"]++;
    uint64_t ns = 0;
    for (const Node& node : executable->nodes) ns += node.work.ns;
    // A copy: a launched graph continues after its executable is destroyed.
    auto graph = std::make_shared<Graph>(*executable);
    enqueue(stream, {"a graph", Engine::COMPUTE, ns, [graph] { return run(*graph); }});
    progress(call.lock);
    return SUCCESS;
}

CUDA_API cuGraphExecDestroy(Graph* executable) {
    Call call(true);
    if (call.result) return call.result;
    if (!state().executables.erase(executable)) return INVALID_HANDLE;
    executable->device->used_bytes -= executable->bytes;
    delete executable;
    return call.device->fault;
}

CUDA_API cuGraphDestroy(Graph* graph) {
    Call call(true);
    if (call.result) return call.result;
    if (!state().graphs.erase(graph)) return INVALID_HANDLE;
    delete graph;
    return call.device->fault;
}
