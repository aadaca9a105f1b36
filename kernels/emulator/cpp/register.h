// Registration of a .cu file's kernels in the table.
#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "launch.h"

namespace emulator {

struct Registration {
    explicit Registration(Kernel kernel);
};

// Runs before each thread.
#ifndef EMULATOR_MODULE
inline void enter() {}
#else
void enter();
#endif

// Types of a kernel's parameters, from its signature.
template <auto kernel>
struct Signature;

template <class... P, void (*kernel)(P...)>
struct Signature<kernel> {
    static void invoke(void** parameters) {
        enter();
        call(parameters, std::index_sequence_for<P...>{});
    }
    static std::vector<size_t> bytes() { return {sizeof(P)...}; }

  private:
    template <size_t... I>
    static void call(void** parameters, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<P>*>(parameters[I])...);
    }
};

constexpr unsigned threads_max(unsigned threads, unsigned = 1) { return threads; }

template <auto kernel>
Kernel describe(const char* name, unsigned threads) {
    return {name, &Signature<kernel>::invoke, Signature<kernel>::bytes(), threads};
}

}  // namespace emulator
