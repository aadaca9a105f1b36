// Prefix that the fake NVRTC puts before a source: kernels for the CPU in a separate library, which
// the fake driver loads and runs threads of. The library does not support threads that wait for
// each other: those functions are the driver's, so linking fails.
#pragma once
#define EMULATOR_MODULE
#include <map>

#include "cuda.h"

namespace emulator {

thread_local Thread* current = nullptr;
// The driver's `current`.
static Thread* (*current_of_driver)() = nullptr;

void enter() { current = current_of_driver(); }

static std::map<std::string, Kernel>& table() {
    static std::map<std::string, Kernel> kernels;
    return kernels;
}

Registration::Registration(Kernel kernel) { table().emplace(kernel.name, std::move(kernel)); }

}  // namespace emulator

// The kernel of this name, or null. From this call on, `current` returns the running thread.
extern "C" __attribute__((visibility("default"))) const emulator::Kernel* fakecuda_module_kernel(const char* name, emulator::Thread* (*current)()) {
    emulator::current_of_driver = current;
    const auto found = emulator::table().find(name);
    return found == emulator::table().end() ? nullptr : &found->second;
}
