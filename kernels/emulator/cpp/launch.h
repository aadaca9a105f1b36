// Running a kernel on the processor: what a host program needs.
//
//     const emulator::Kernel* kernel = emulator::find("copy_4");
//     std::string fault = emulator::launch(*kernel, {blocks, 1, 1}, {256, 1, 1}, 0, parameters, {});
//
// `parameters` has a pointer to each argument, as cuLaunchKernel takes them. Addresses among them are plain pointers.
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
    // Runs one thread of it, as `current` says which.
    void (*invoke)(void** parameters);
    // The size of each parameter, in order: how many bytes lie behind each pointer.
    std::vector<size_t> parameter_bytes;
    // From its launch bounds.
    unsigned threads_max;
};

struct Options {
    // The order that threads of a block, and blocks of a grid, run in: 0 forwards, 1 backwards, else shuffled by this number.
    // Correct kernels give the same results in every order.
    uint32_t order = 0;
    // Blocks run on as many threads of this process at once.
    unsigned workers = 1;
};

// Dynamic shared memory that a block can have: what the largest device lets a kernel opt in to.
constexpr size_t dynamic_shared_bytes_max = 227 * 1024;
// Shared memory that a kernel can declare.
constexpr size_t static_shared_bytes_max = 48 * 1024;

// The kernel of that name, or null. Pointers stay good.
const Kernel* find(const std::string& name);

// The names of all kernels, in alphabetical order.
std::vector<std::string> names();

// Run all of a grid to its end. Gives what went wrong (a barrier that not all threads reach, a launch past the limits), or an empty
// string. May be called from several threads at once.
std::string launch(const Kernel& kernel, Dim3 grid, Dim3 block, size_t shared_bytes, void** parameters, const Options& options);

}  // namespace emulator
