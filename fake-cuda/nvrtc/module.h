// What the fake NVRTC puts before a source: kernels for the processor in a library of their own, which the fake driver loads and runs threads of. Threads
// that wait for each other are not in it: what they need is the driver's, and is missed when the library is linked.
#pragma once
#define EMULATOR_MODULE
#include <map>

#include "cuda.h"

namespace emulator {

thread_local Thread* current = nullptr;
// The driver's own.
static Thread* (*current_of_driver)() = nullptr;

void enter() { current = current_of_driver(); }

static std::map<std::string, Kernel>& table() {
    static std::map<std::string, Kernel> kernels;
    return kernels;
}

Registration::Registration(Kernel kernel) { table().emplace(kernel.name, std::move(kernel)); }

}  // namespace emulator

// The kernel of that name, or null; from now on threads are those that `current` tells of.
extern "C" __attribute__((visibility("default"))) const emulator::Kernel* fakecuda_module_kernel(const char* name, emulator::Thread* (*current)()) {
    emulator::current_of_driver = current;
    const auto found = emulator::table().find(name);
    return found == emulator::table().end() ? nullptr : &found->second;
}
