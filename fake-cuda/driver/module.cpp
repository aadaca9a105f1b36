// Modules, and kernels that run on the CPU.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <regex>

#include "block.h"
#include "fake.h"

namespace fake {

// A kernel that accesses invalid memory faults with the address, as on a device.
static struct sigaction before;
static void on_fault(int signal, siginfo_t* info, void* context) {
    if (emulator::current != nullptr) {
        char text[96];
        snprintf(text, sizeof text, "it reaches memory that is not there, at %p", info->si_addr);
        emulator::current->block->fail(text);
    }
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
    sigaction(signal, &before, nullptr);
}

static void watch_faults() {
    static const bool once = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        // SA_NODEFER: the handler does not return, so the signal must stay unblocked for the next
        // fault.
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        return sigaction(SIGSEGV, &action, &before) == 0;
    }();
    (void)once;
}

// Whether this launch must fail.
static bool fails(const std::string& name, int device) {
    Settings& settings = state().settings;
    if (settings.fault_device >= 0 && settings.fault_device != device) return false;
    const bool counted = settings.launches_left == 0;
    if (settings.launches_left != UINT64_MAX) settings.launches_left = counted ? UINT64_MAX : settings.launches_left - 1;
    return counted || name == settings.fault_kernel;
}

static Result run(const std::string& name, int device, const emulator::Kernel* kernel, emulator::Dim3 grid, emulator::Dim3 block, size_t shared_bytes, std::vector<std::vector<uint64_t>>& values) {
    if (name == state().settings.idle_kernel) return SUCCESS;
    if (fails(name, device)) {
        if (state().settings.fault_signal != 0) raise(state().settings.fault_signal);
        if (state().settings.fault < 0) {
            // Not a fault: all work stops from here on.
            state().settings.paused = true;
            return SUCCESS;
        }
        state().last_fault = name + ": fails as it was told to";
        return state().settings.fault;
    }
    std::vector<void*> parameters;
    for (auto& value : values) parameters.push_back(value.data());
    watch_faults();
    const uint32_t order = state().settings.seed == 0 ? 0 : uint32_t(state().chance() % 4);
    const std::string fault = emulator::launch(*kernel, grid, block, shared_bytes, parameters.data(), {order, state().settings.workers});
    if (fault.empty()) return SUCCESS;
    state().last_fault = fault;
    return fault.find("memory that is not there") != std::string::npos ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
}

static std::set<std::string> entries_of(const char* text) {
    std::set<std::string> entries;
    static const std::regex entry("\\.entry\\s+([A-Za-z_$][A-Za-z0-9_$]*)");
    for (auto found = std::cregex_iterator(text, text + strlen(text), entry); found != std::cregex_iterator(); ++found)
        entries.insert((*found)[1]);
    return entries;
}

// Write the log, if the caller requested it.
static void explain(unsigned count, const int* options, void** values, const char* text) {
    char* buffer = nullptr;
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == 5) buffer = static_cast<char*>(values[i]);
        if (options[i] == 6) bytes = reinterpret_cast<size_t>(values[i]);
    }
    if (buffer != nullptr && bytes > 0) snprintf(buffer, bytes, "%s", text);
}

// Find the kernels of PTX, or return the error with which this driver rejects it.
static Result load_ptx(const char* text, unsigned count, const int* options, void** values, std::set<std::string>& entries) {
    const char* version = strstr(text, ".version");
    if (version == nullptr || strstr(text, ".target") == nullptr) {
        explain(count, options, values, "ptxas fatal: Missing .version directive at start of file");
        return INVALID_PTX;
    }
    // Drivers accept the PTX of their CUDA version and of older ones.
    const int major = atoi(version + strlen(".version")), newest = state().settings.driver_version >= 13000 ? 9 : 8;
    if (major > newest) {
        explain(count, options, values, "ptxas fatal: Unsupported .version");
        return UNSUPPORTED_PTX_VERSION;
    }
    entries = entries_of(text);
    return SUCCESS;
}

// Open the library that an image of the fake NVRTC names; null if it names none. The library is
// never closed, since pending work may need it.
static void* compiled_library(const char* image) {
    static const char mark[] = "fake library ";
    const char* found = strstr(image, mark);
    if (found == nullptr) return nullptr;
    const char* path = found + strlen(mark);
    const std::string from(path, strcspn(path, "\n"));
    // A copy, which the loader treats as a different library, since each driver of a process has
    // separate threads.
    std::string copy = "/tmp/fakecuda-XXXXXX";
    const int file = mkstemp(copy.data());
    if (file < 0) return nullptr;
    std::ifstream library(from, std::ios::binary);
    std::ofstream(copy, std::ios::binary) << library.rdbuf();
    void* opened = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) fprintf(stderr, "the fake driver: %s\n", dlerror());
    close(file);
    unlink(copy.c_str());
    return opened;
}

}  // namespace fake

using namespace fake;

CUDA_API cuModuleLoadDataEx(Module** module, const void* image, unsigned count, const int* options, void** values) {
    Call call;
    if (call.result) return call.result;
    if (forbidden_in_capture("cuModuleLoadDataEx")) return STREAM_CAPTURE_UNSUPPORTED;
    const char* text = static_cast<const char*>(image);
    std::set<std::string> entries;
    void* library = compiled_library(text);
    if (library == nullptr && is_cubin(text)) {
        if (const Result refused = load_cubin(text, entries)) return refused;
        state().counts["cubin_loads"]++;
    } else if (library == nullptr || text[0] == '.') {
        if (const Result refused = load_ptx(text, count, options, values, entries)) return refused;
        state().counts["ptx_loads"]++;
    }
    state().resumed.wait(call.lock, [&] { return !entries.count(state().settings.held_kernel); });
    const uint64_t bytes = state().settings.module_bytes;
    if (const Result result = allocate_outside(call.device, bytes)) return result;
    *module = new Module{call.device, entries};
    (*module)->bytes = bytes;
    if (library != nullptr)
        (*module)->compiled = reinterpret_cast<decltype((*module)->compiled)>(dlsym(library, "fakecuda_module_kernel"));
    state().modules.insert(*module);
    return SUCCESS;
}

CUDA_API cuModuleUnload(Module* module) {
    Call call(true);
    if (call.result) return call.result;
    if (!state().modules.erase(module)) return INVALID_HANDLE;
    charge_synchronisation(module->device);
    // Functions stay allocated, so that a use after the module is unloaded is detected.
    for (auto& function : state().functions)
        if (function->module == module) function->module = nullptr;
    module->device->used_bytes -= module->bytes;
    delete module;
    return call.device->fault;
}

CUDA_API cuModuleGetFunction(Function** function, Module* module, const char* name) {
    Call call;
    if (call.result) return call.result;
    if (!state().modules.count(module)) return INVALID_HANDLE;
    const auto current = [] { return emulator::current; };
    const emulator::Kernel* kernel = module->compiled != nullptr ? module->compiled(name, current) : emulator::find(name);
    if (module->compiled != nullptr ? kernel == nullptr : !module->entries.count(name)) return NOT_FOUND;
    if (kernel == nullptr) {
        state().violation(std::string("kernel ") + name + " has no source that the fake could run");
        return NOT_FOUND;
    }
    state().functions.push_back(std::make_unique<Function>(Function{module, name, kernel, 48 << 10}));
    *function = state().functions.back().get();
    return SUCCESS;
}

CUDA_API cuFuncGetAttribute(int* value, int attribute, Function* function) {
    Call call;
    if (call.result) return call.result;
    switch (attribute) {
        case 0: *value = int(function->kernel->threads_max); break;
        case 4: *value = 32; break;
        case 5: *value = 80; break;
        case 6: *value = int(state().settings.sm); break;
        case 8: *value = function->shared_bytes_max; break;
        default: *value = 0;
    }
    return SUCCESS;
}

CUDA_API cuFuncSetAttribute(Function* function, int attribute, int value) {
    Call call;
    if (call.result) return call.result;
    if (attribute != 8 || value < 0 || size_t(value) > emulator::dynamic_shared_bytes_max) return INVALID_VALUE;
    function->shared_bytes_max = value;
    return SUCCESS;
}

CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t shared_bytes) {
    Call call;
    if (call.result) return call.result;
    if (threads <= 0 || threads > 1024) return INVALID_VALUE;
    const int by_threads = 2048 / threads;
    const int by_shared = shared_bytes == 0 ? 32 : int((228 << 10) / (shared_bytes + 1024));
    *blocks = std::min({by_threads, by_shared, 32});
    return SUCCESS;
}

CUDA_API cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
                        Stream* stream, void** parameters, void** extra) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuLaunchKernel")) return INVALID_HANDLE;
    if (function->module == nullptr) {
        state().violation("kernel " + function->name + " is launched after its module was unloaded");
        return INVALID_HANDLE;
    }
    if (function->module->device != stream->device) return INVALID_HANDLE;
    const uint64_t threads = uint64_t(bx) * by * bz;
    if (extra != nullptr || gx == 0 || gy == 0 || gz == 0 || threads == 0) return INVALID_VALUE;
    if (gx > 0x7fffffffu || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64 || threads > 1024) return INVALID_VALUE;
    if (shared_bytes > unsigned(function->shared_bytes_max)) return INVALID_VALUE;
    if (threads > function->kernel->threads_max) return LAUNCH_OUT_OF_RESOURCES;
    std::vector<std::vector<uint64_t>> values;
    const auto& sizes = function->kernel->parameter_bytes;
    for (size_t i = 0; i < sizes.size(); i++) {
        // Two extra words keep structures of 16-byte alignment inside the buffer.
        values.emplace_back((sizes[i] + 7) / 8 + 2);
        memcpy(values.back().data(), parameters[i], sizes[i]);
    }
    state().counts["launches"]++;
    state().counts["launches of " + function->name]++;
    const std::string name = function->name;
    const emulator::Kernel* kernel = function->kernel;
    const int device = call.device->ordinal;
    const Result result = enqueue(stream, {"a kernel", Engine::COMPUTE, 5'000, [=]() mutable {
        return run(name, device, kernel, {gx, gy, gz}, {bx, by, bz}, shared_bytes, values);
    }});
    progress(call.lock);
    return result;
}
