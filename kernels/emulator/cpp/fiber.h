// Fibers: stacks that one thread of the process switches between.
#pragma once
#include <cstddef>

namespace emulator {

// A point to continue at: the stack pointer, with all relevant registers saved below it.
using Point = void*;

// Save the current point in `from` and continue at `to`.
void switch_to(Point* from, Point to);

// Frames are several times as large under AddressSanitizer.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t stack_bytes = 512 * 1024;
#else
constexpr size_t stack_bytes = 128 * 1024;
#endif

// A stack with an unmapped page at its end. The fiber calls `body` at its first switch; `body` must
// not return.
class Fiber {
  public:
    explicit Fiber(void (*body)());
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Point at which the fiber continues.
    Point point = nullptr;

  private:
    char* memory;
};

}  // namespace emulator
