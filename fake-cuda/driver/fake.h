// The state of the fake driver.
//
// Calls only append work to the queues of streams. Work runs when a caller waits or polls, or by a
// random choice, in any order that the recorded events allow. A program that relies on an
// unrequested order fails in some runs, and the seed reproduces the run. One lock protects all
// state.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "launch.h"
#include "types.h"

namespace emulator {
struct Thread;
}

namespace fake {

struct Stream;
struct Capture;

// Engine that a piece of work occupies. Copies of one direction run in sequence; kernels of several
// streams run concurrently.
enum class Engine { COMPUTE, TO_DEVICE, TO_HOST };

struct Work {
    const char* what;
    Engine engine;
    uint64_t ns;
    std::function<Result()> run;
    // Whether the work is a copy to the device as large as only loads make: see `loads_left`.
    bool is_load = false;
};

// A point at which an event was recorded.
struct Point {
    bool reached = false;
    uint64_t time_ns = 0;
};

struct Device {
    int ordinal = 0;
    unsigned retained = 0;
    uint64_t used_bytes = 0;
    // Part of the used memory that belongs to the context.
    uint64_t context_bytes = 0;
    // Error that ended the device's context permanently.
    Result fault = SUCCESS;
    uint64_t engine_free_ns[3] = {};
    // All physical memory, poisoned where it was never written: blocks are pieces of this file.
    int file = -1;
    uint8_t* memory = nullptr;
    std::map<uint64_t, uint64_t> file_holes;
    uint64_t file_bytes = 0;
    uint64_t bit() const { return uint64_t(1) << ordinal; }
    ~Device();
};

struct Item {
    enum Kind { WORK, RECORD, WAIT } kind;
    Work work;
    std::shared_ptr<Point> point;
};

struct Stream {
    Device* device;
    int priority;
    bool destroyed = false;
    std::deque<Item> items;
    uint64_t time_ns = 0;
    // The capture in progress, and the nodes that the stream's next work depends on.
    Capture* capture = nullptr;
    std::set<size_t> tail;
};

struct Event {
    Device* device;
    bool timing;
    std::shared_ptr<Point> point;
    Capture* capture = nullptr;
    std::set<size_t> nodes;
};

struct Node {
    Work work;
    std::set<size_t> after;
};

struct Graph {
    Device* device;
    std::vector<Node> nodes;
    // Device memory of an executable graph.
    uint64_t bytes = 0;
};

struct Capture {
    Graph* graph;
    Stream* origin;
    std::thread::id thread;
    bool invalidated = false;
    std::set<Stream*> streams;
    // Nodes that cuStreamUpdateCaptureDependencies removed from a stream's tail.
    std::set<size_t> released = {};
    // The list that cuStreamGetCaptureInfo returned last.
    std::vector<void*> shown = {};
};

struct Module {
    Device* device;
    std::set<std::string> entries;
    // Kernels of a module that the fake NVRTC compiled; other modules use the emulator's kernels.
    const emulator::Kernel* (*compiled)(const char*, emulator::Thread* (*)()) = nullptr;
    // Device memory of the module.
    uint64_t bytes = 0;
};

struct Function {
    Module* module;
    std::string name;
    const emulator::Kernel* kernel;
    int shared_bytes_max;
};

// Device memory that is accessible at these addresses.
struct Region {
    uint64_t bytes;
    Device* device;
    // Devices that may read the region, and write it: one bit each.
    uint64_t readers = 0, writers = 0;
    // For cuMemAlloc: the mapping around the region. For cuMemMap: the physical memory.
    void* mapping = nullptr;
    size_t mapping_bytes = 0;
    uint64_t physical = 0;
};

struct Physical {
    Device* device;
    // A piece of this file: the device's file, or for an imported block the file of the device in
    // the exporting process.
    int file;
    uint64_t offset, bytes;
    bool exportable = false, imported = false;
    unsigned mapped = 0;
    bool released = false;
};

// Costs of driver calls and of the host's copies, in nanoseconds: README.md names the source of
// each figure.
struct Prices {
    uint64_t copy_ns = 3'000;
    uint64_t create_ns = 13'500, create_mib_ns = 87;
    uint64_t map_ns = 1'000;
    uint64_t set_access_ns = 24'000, set_access_piece_ns = 3'000;
    uint64_t unmap_ns = 30'000;
    uint64_t release_ns = 23'000;
    uint64_t host_alloc_mib_ns = 230'000, host_free_mib_ns = 220'000;
    uint64_t host_copy_bytes_per_s = 10'000'000'000;
    uint64_t page_fault_ns = 40;
};

struct Settings {
    unsigned devices = 1;
    uint64_t memory_bytes = uint64_t(1) << 30;
    // Device memory that the driver uses: for each process that holds the device, each module, each
    // instantiated graph, and each library handle.
    uint64_t context_bytes = 0, module_bytes = 0, graph_bytes = 0, library_bytes = 0;
    // Limit of pinned memory.
    uint64_t host_memory_bytes = UINT64_MAX;
    unsigned sm = 90;
    int driver_version = 13000;
    // Order of work; 0: the order of submission.
    uint64_t seed = 1;
    uint64_t bus_bytes_per_s = 55'500'000'000;
    Prices prices;
    // Threads that run blocks of a kernel.
    unsigned workers = 1;
    // Number of allocations that still succeed, and number of failures after them.
    uint64_t allocations_left = UINT64_MAX, allocations_fail = 0;
    // Number of launches before a failure, or the name of a kernel that fails; on `fault_device`,
    // or on any device if that is negative. `fault` is the reported error; if it is negative, the
    // launch reports success, and no work runs from then on.
    uint64_t launches_left = UINT64_MAX;
    std::string fault_kernel;
    // Signal by which the failing kernel ends the process, instead of a fault; 0: none.
    int fault_signal = 0;
    // Kernel that does nothing: its outputs keep their contents.
    std::string idle_kernel;
    int fault_device = -1;
    Result fault = ILLEGAL_ADDRESS;
    bool paused = false;
    bool exports_memory = true;
    // Error from loading machine code, if not SUCCESS; PTX still loads.
    Result cubin_refusal = SUCCESS;
    // Loading a module with this kernel blocks until the setting changes.
    std::string held_kernel;
    // Peer access between devices: 0, unsupported; 1, supported; 2, reported as supported, but
    // failing.
    unsigned peer_access = 1;
    // Number of copies of LOAD_BYTES or more to the device that may run; later ones wait until the
    // number is raised.
    uint64_t loads_left = UINT64_MAX;
    // Number of failures left for each call: beginning and ending a capture, a launch within a
    // capture, reading and setting its dependencies, instantiating a graph and launching it.
    std::map<std::string, uint64_t> failing = {
        {"fail_begin_capture", 0}, {"fail_captured_launch", 0}, {"fail_capture_info", 0}, {"fail_capture_dependencies", 0}, {"fail_end_capture", 0}, {"fail_instantiate", 0}, {"fail_graph_launch", 0}};
    // Settings of the libraries above the driver; 0 disables each. `cublaslt_create` and
    // `cublaslt_matmul` are the errors of these calls; `cublaslt_declines` makes the heuristic find
    // no algorithm; `cublaslt_major` is a version that differs from the file name's; `nvrtc_fails`
    // makes every compilation fail; `nvrtc_newest` is the newest compute capability that the
    // compiler supports.
    std::map<std::string, uint64_t> libraries = {{"cublaslt_create", 0}, {"cublaslt_matmul", 0}, {"cublaslt_declines", 0},
                                                 {"cublaslt_major", 0},  {"nvrtc_fails", 0},     {"nvrtc_newest", 0}};
};

constexpr uint64_t LOAD_BYTES = uint64_t(1) << 20;

// A completed copy or fill, for tests that check the order.
struct Done {
    uint64_t address, bytes;
    uint32_t engine, device;
    uint64_t end_ns;
};

struct State {
    std::mutex mutex;
    std::condition_variable resumed;
    Settings settings;
    bool initialised = false;
    std::vector<std::unique_ptr<Device>> devices;
    std::mt19937_64 chance;

    std::set<Stream*> streams;
    std::set<Event*> events;
    std::set<Graph*> graphs, executables;
    std::set<Capture*> captures;
    std::set<Module*> modules;
    std::vector<std::unique_ptr<Function>> functions;

    std::map<uint64_t, Region> regions;
    std::map<uint64_t, uint64_t> reservations;
    std::map<uint64_t, Physical> physical;
    uint64_t next_physical = 1;
    std::map<uint64_t, uint64_t> pinned;
    // Digests of pieces of pinned memory at their last copy to a device, by address.
    std::map<uint64_t, uint64_t> copied_from;
    // Handles and descriptors of libraries.
    int64_t library_objects = 0;

    // Violations of the driver's rules.
    std::vector<std::string> violations;
    std::string last_fault;
    std::map<std::string, uint64_t> counts;
    std::vector<Done> done;

    void violation(std::string text) {
        if (violations.size() < 1000) violations.push_back(std::move(text));
    }
};

State& state();
// Reset all state.
void reset();

// The lock, and the device whose context is current on the calling thread.
class Call {
  public:
    // `for_release`: succeed in a lost context, too.
    explicit Call(bool for_release = false);
    std::unique_lock<std::mutex> lock;
    Device* device = nullptr;
    // If not SUCCESS, the call must return it at once.
    Result result = SUCCESS;
};

// Device that is current on this thread.
extern thread_local Device* current;

// order.cpp
Result enqueue(Stream* stream, Work work);
Result drain(std::unique_lock<std::mutex>& lock, Device* device, const std::function<bool()>& until);
void progress(std::unique_lock<std::mutex>& lock);
void lose(Device* device, Result fault);
bool known(Stream* stream, const char* call);
bool known(Event* event, const char* call);
// Run the next item of one stream. Returns whether there was one.
bool step();

// capture.cpp
// Whether the calling thread captures, so that calls that wait or allocate are forbidden. A
// forbidden call invalidates the capture.
bool forbidden_in_capture(const char* call);
Result record(Stream* stream, Work work);
// Whether this call must fail; decrements the setting's count.
bool is_to_fail(const char* setting);

// costs.cpp
// Count a call and its cost.
void charge(const char* call, uint64_t ns);
// Cost of `bytes` at a price per mebibyte.
uint64_t for_mib(uint64_t bytes, uint64_t mib_ns);
uint64_t copy_ns(uint64_t bytes);
// Charge a copy from pinned memory to the device, and the host's copy into that memory if its
// contents are new.
void charge_copy(const void* from, uint64_t bytes);
// Charge the remaining work of a device at a call that synchronises implicitly. The fake does not
// wait where the documentation promises no synchronisation.
void charge_synchronisation(const Device* device);

// cubin.cpp
// Whether an image is machine code.
bool is_cubin(const char* image);
// Find the kernels of machine code, or return the error with which this driver, or a device of this
// kind, rejects it.
Result load_cubin(const char* image, std::set<std::string>& entries);

// memory.cpp
// Whether a device may read, or write, the whole range.
bool readable(uint64_t address, uint64_t bytes, const Device* device);
bool writable(uint64_t address, uint64_t bytes, const Device* device);
bool is_pinned(const void* address, uint64_t bytes);
Result allocate(Device* device, uint64_t bytes);
// Allocate memory for the driver's use; 0 bytes always succeed.
Result allocate_outside(Device* device, uint64_t bytes);
void note(uint64_t address, uint64_t bytes, Engine engine, Device* device);

}  // namespace fake
