// Interpreter of fused elementwise expressions: a short program, the same for every element. Its
// registers are in shared memory, one column per thread, since a device's registers cannot be
// indexed at run time. Control flow is uniform.
#include "elementwise.cuh"

template <class T, int lanes>
struct Interpreter {
    const Elementwise& e;
    // Registers of this thread.
    Lanes<T, lanes>* registers;

    __device__ __forceinline__ int inputs() const { return int(e.inputs); }
    __device__ __forceinline__ u32 input_type(int input) const { return e.input_type[input]; }
    __device__ __forceinline__ u32 output_type() const { return e.output_type; }

    __device__ __forceinline__ Lanes<T, lanes> run(const Lanes<T, lanes> (&values)[inputs_max]) const {
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= inputs()) break;
            registers[input * threads] = values[input];
        }
        Lanes<T, lanes> result = {};
        for (u32 at = 0; at < e.instructions; at++) {
            const Instruction& in = e.code[at];
            const Lanes<T, lanes> a = registers[in.a * threads], b = registers[in.b * threads], c = registers[in.c * threads];
#pragma unroll
            for (int lane = 0; lane < lanes; lane++) result.of[lane] = compute(in, a.of[lane], b.of[lane], c.of[lane]);
            registers[in.to * threads] = result;
        }
        return result;
    }
};

typedef Lanes<float, packed_lanes> Floats;
KERNEL(elementwise_packed, (threads), ELEMENTWISE_PARAMETERS) {
    DYNAMIC_SHARED(Floats, registers);
    const void* const inputs[inputs_max] = ELEMENTWISE_INPUTS;
    packed(to, inputs, e, Interpreter<float, packed_lanes>{e, registers + threadIdx.x});
}

typedef Lanes<float, 1> Float;
KERNEL(elementwise_float, (threads), ELEMENTWISE_PARAMETERS) {
    DYNAMIC_SHARED(Float, registers);
    const void* const inputs[inputs_max] = ELEMENTWISE_INPUTS;
    strided<float>(to, inputs, e, Interpreter<float, 1>{e, registers + threadIdx.x});
}

typedef Lanes<i64, 1> Integer;
KERNEL(elementwise_integer, (threads), ELEMENTWISE_PARAMETERS) {
    DYNAMIC_SHARED(Integer, registers);
    const void* const inputs[inputs_max] = ELEMENTWISE_INPUTS;
    strided<i64>(to, inputs, e, Interpreter<i64, 1>{e, registers + threadIdx.x});
}
