// Interface for host programs that run kernels on the CPU.
//
//     const emulator::Kernel* kernel = emulator::find("copy_4");
//     std::string fault = emulator::launch(*kernel, {blocks, 1, 1}, {256, 1, 1}, 0, parameters, {});
//
// `parameters` has a pointer to each argument, like cuLaunchKernel's. Addresses among the arguments
// are plain pointers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// A kernel as its .cu file declares it.
struct Kernel {
    const char* name;
    // Runs one thread of the kernel; `current` selects the thread.
    void (*invoke)(void** parameters);
    // Size in bytes of each parameter, in order.
    std::vector<size_t> parameter_bytes;
    // Maximum from the kernel's launch bounds.
    unsigned threads_max;
};

struct Options {
    // Order in which threads of a block, and blocks of a grid, run: 0 forwards, 1 backwards, else
    // shuffled with this seed. Correct kernels give the same results in every order.
    uint32_t order = 0;
    // Number of threads of this process that run blocks.
    unsigned workers = 1;
};

// Largest dynamic shared memory of a block: the largest limit that a kernel can opt in to on any
// device.
constexpr size_t dynamic_shared_bytes_max = 227 * 1024;
// Largest shared memory that a kernel can declare.
constexpr size_t static_shared_bytes_max = 48 * 1024;

// The kernel of this name, or null. Pointers stay valid.
const Kernel* find(const std::string& name);

// Names of all kernels, in alphabetical order.
std::vector<std::string> names();

// Run all blocks of a grid to their end. Returns the error (a barrier that some threads do not
// reach, a launch over the limits), or an empty string. May be called from several threads at once.
std::string launch(const Kernel& kernel, Dim3 grid, Dim3 block, size_t shared_bytes, void** parameters, const Options& options);

}  // namespace emulator
