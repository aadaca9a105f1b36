// The state of the fake driver.
//
// Calls only put work into streams' queues. Work is done when somebody waits, asks, or chance has it, in any order that the recorded events
// allow: what relies on an order that nobody asked for fails in some runs, and the seed brings the run back. Everything happens under one lock.
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

// What a piece of work keeps busy. Copies of one direction come one after the other; kernels of several streams run beside each other.
enum class Engine { COMPUTE, TO_DEVICE, TO_HOST };

struct Work {
    const char* what;
    Engine engine;
    uint64_t ns;
    std::function<Result()> run;
    // A copy of so much to the device that only loads make one: see `loads_left`.
    bool is_load = false;
};

// A point that an event was recorded at.
struct Point {
    bool reached = false;
    uint64_t time_ns = 0;
};

struct Device {
    int ordinal = 0;
    unsigned retained = 0;
    uint64_t used_bytes = 0;
    // Of these, what the context takes.
    uint64_t context_bytes = 0;
    // What ended its context, for good.
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
    // Where it is being recorded, and the nodes that its next work comes after.
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
    // Of an executable one: memory of the device.
    uint64_t bytes = 0;
};

struct Capture {
    Graph* graph;
    Stream* origin;
    std::thread::id thread;
    bool invalidated = false;
    std::set<Stream*> streams;
};

struct Module {
    Device* device;
    std::set<std::string> entries;
    // The kernels of what the fake NVRTC has compiled; of other modules they are the emulator's own.
    const emulator::Kernel* (*compiled)(const char*, emulator::Thread* (*)()) = nullptr;
    // Memory of the device.
    uint64_t bytes = 0;
};

struct Function {
    Module* module;
    std::string name;
    const emulator::Kernel* kernel;
    int shared_bytes_max;
};

// Device memory that may be used at these addresses.
struct Region {
    uint64_t bytes;
    Device* device;
    // The devices that may read it, and write it: a bit for each.
    uint64_t readers = 0, writers = 0;
    // Of cuMemAlloc: the mapping around it. Of cuMemMap: the physical memory.
    void* mapping = nullptr;
    size_t mapping_bytes = 0;
    uint64_t physical = 0;
};

struct Physical {
    Device* device;
    // A piece of this file: the device's own, or, of an imported block, that of the device in the process that it is from.
    int file;
    uint64_t offset, bytes;
    bool exportable = false, imported = false;
    unsigned mapped = 0;
    bool released = false;
};

// What calls of a driver and the host's own copies cost, in nanoseconds: see README.md, which names the source of each figure.
struct Prices {
    uint64_t copy_ns = 2'000;
    uint64_t create_ns = 1'000, create_mib_ns = 14'000;
    uint64_t map_ns = 2'000;
    uint64_t set_access_ns = 35'000, set_access_piece_ns = 3'000;
    uint64_t unmap_ns = 34'000;
    uint64_t release_ns = 23'000;
    uint64_t host_alloc_mib_ns = 230'000, host_free_mib_ns = 220'000;
    uint64_t host_copy_bytes_per_s = 10'000'000'000;
    uint64_t page_fault_ns = 400;
};

struct Settings {
    unsigned devices = 1;
    uint64_t memory_bytes = uint64_t(1) << 30;
    // What the driver takes of a device's memory by itself: for each process that holds it, each module, each graph that is instantiated, and each handle of
    // a library.
    uint64_t context_bytes = 0, module_bytes = 0, graph_bytes = 0, library_bytes = 0;
    // Pinned memory that there can be.
    uint64_t host_memory_bytes = UINT64_MAX;
    unsigned sm = 90;
    int driver_version = 13000;
    // 0: the order in which work was given.
    uint64_t seed = 1;
    uint64_t bus_bytes_per_s = 55'600'000'000;
    Prices prices;
    // Threads that run blocks of a kernel.
    unsigned workers = 1;
    // Allocations that still succeed, and how many fail then.
    uint64_t allocations_left = UINT64_MAX, allocations_fail = 0;
    // Launches until one fails, or the kernel that does, on this device or, below 0, on any, and what it reports; below 0, it is reported well, and from then
    // on nothing goes on.
    uint64_t launches_left = UINT64_MAX;
    std::string fault_kernel;
    // A signal that the kernel which fails ends the process by, in the place of a fault; 0: none.
    int fault_signal = 0;
    // A kernel that does nothing: its outputs keep what was there.
    std::string idle_kernel;
    int fault_device = -1;
    Result fault = ILLEGAL_ADDRESS;
    bool paused = false;
    bool exports_memory = true;
    // What loading machine code reports, if not SUCCESS: PTX is taken all the same.
    Result cubin_refusal = SUCCESS;
    // Loads of a module that has this kernel wait until it is another.
    std::string held_kernel;
    // Whether devices reach each other's memory: 0, they do not; 1, they do; 2, they say so, and do not.
    unsigned peer_access = 1;
    // Copies of LOAD_BYTES or more to the device that are made; those behind them wait until there may be more.
    uint64_t loads_left = UINT64_MAX;
    // Calls that still fail: beginning and ending a capture, a launch within one, instantiating a graph and launching it.
    std::map<std::string, uint64_t> failing = {
        {"fail_begin_capture", 0}, {"fail_captured_launch", 0}, {"fail_end_capture", 0}, {"fail_instantiate", 0}, {"fail_graph_launch", 0}};
    // What libraries above the driver are told: `cublaslt_create` and `cublaslt_matmul` are what these calls report, `cublaslt_declines` has no product fit, and
    // `cublaslt_major` is another version than the file's name says; with `nvrtc_fails` nothing compiles, and `nvrtc_newest` is the last compute capability that the compiler knows.
    // 0: none of it.
    std::map<std::string, uint64_t> libraries = {{"cublaslt_create", 0}, {"cublaslt_matmul", 0}, {"cublaslt_declines", 0},
                                                 {"cublaslt_major", 0},  {"nvrtc_fails", 0},     {"nvrtc_newest", 0}};
};

constexpr uint64_t LOAD_BYTES = uint64_t(1) << 20;

// A copy or fill that was done, for tests that look at the order.
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
    // The contents of pieces of pinned memory when they were last copied to a device, by address.
    std::map<uint64_t, uint64_t> copied_from;
    // Handles and descriptors of libraries.
    int64_t library_objects = 0;

    // What no correct program does.
    std::vector<std::string> violations;
    std::string last_fault;
    std::map<std::string, uint64_t> counts;
    std::vector<Done> done;

    void violation(std::string text) {
        if (violations.size() < 1000) violations.push_back(std::move(text));
    }
};

State& state();
// Forget everything.
void reset();

// The lock, and the device whose context the calling thread has made current.
class Call {
  public:
    // `for_release`: also in a lost context.
    explicit Call(bool for_release = false);
    std::unique_lock<std::mutex> lock;
    Device* device = nullptr;
    // Not SUCCESS: return it at once.
    Result result = SUCCESS;
};

// The device that is current on this thread.
extern thread_local Device* current;

// order.cpp
Result enqueue(Stream* stream, Work work);
Result drain(std::unique_lock<std::mutex>& lock, Device* device, const std::function<bool()>& until);
void progress(std::unique_lock<std::mutex>& lock);
void lose(Device* device, Result fault);
bool known(Stream* stream, const char* call);
bool known(Event* event, const char* call);
// Do the next thing of one stream. Gives whether there was anything to do.
bool step();

// capture.cpp
// Whether the calling thread records, and so must not do what waits or allocates. Ends the recording if it does.
bool forbidden_in_capture(const char* call);
Result record(Stream* stream, Work work);
// Whether this call is to fail, which counts it.
bool is_to_fail(const char* setting);

// costs.cpp
// Count a call, and what it costs.
void charge(const char* call, uint64_t ns);
// The cost of so many bytes at a price for each mebibyte.
uint64_t for_mib(uint64_t bytes, uint64_t mib_ns);
uint64_t copy_ns(uint64_t bytes);
// Charge a copy from pinned memory to the device, and the host's own copy into that memory where its contents are new.
void charge_copy(const void* from, uint64_t bytes);
// Charge what is left to do on a device, which a call waits for that synchronises implicitly. The fake does not wait where the documentation promises nothing.
void charge_synchronisation(const Device* device);

// cubin.cpp
// Whether an image is machine code.
bool is_cubin(const char* image);
// The kernels of machine code; or why this driver, or a device of this kind, refuses it.
Result load_cubin(const char* image, std::set<std::string>& entries);

// memory.cpp
// Whether a device may read all of that, or write it.
bool readable(uint64_t address, uint64_t bytes, const Device* device);
bool writable(uint64_t address, uint64_t bytes, const Device* device);
bool is_pinned(const void* address, uint64_t bytes);
Result allocate(Device* device, uint64_t bytes);
// The same for what the driver needs itself; 0 bytes are always there.
Result allocate_outside(Device* device, uint64_t bytes);
void note(uint64_t address, uint64_t bytes, Engine engine, Device* device);

}  // namespace fake
