// Fibers: stacks that one thread of the process switches between.
#pragma once
#include <cstddef>

namespace emulator {

// A point to go on at: the stack pointer, with all registers that matter saved below it.
using Point = void*;

// Save this point in `from` and go on at `to`.
void switch_to(Point* from, Point to);

// Under AddressSanitizer frames are several times as large.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t stack_bytes = 512 * 1024;
#else
constexpr size_t stack_bytes = 128 * 1024;
#endif

// A stack with an unmapped page at its end. The fiber calls `body` at its first switch; `body` must not return.
class Fiber {
  public:
    explicit Fiber(void (*body)());
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Where it goes on.
    Point point = nullptr;

  private:
    char* memory;
};

}  // namespace emulator
