// A libnvidia-ml.so.1 beside the fake driver: as much as a node asks of it, for the GPUs that the fake driver shows.
// The figures are made up from a GPU's number. The second does not tell its power limit, as some do not.

#include <atomic>
#include <cstdio>
#include <cstring>

#define NVML_API extern "C" __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct Utilization {
    unsigned gpu;
    unsigned memory;
};

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

namespace {
constexpr unsigned GPUS_MAX = 64;
constexpr unsigned long long GIB = 1ull << 30;

struct Gpu {
    std::atomic<unsigned long long> energy_mj{5'000'000};
} gpus[GPUS_MAX];

unsigned number(const Gpu* gpu) {
    return unsigned(gpu - gpus);
}
} // namespace

NVML_API nvmlInit_v2() {
    return SUCCESS;
}

NVML_API nvmlShutdown() {
    return SUCCESS;
}

NVML_API nvmlSystemGetDriverVersion(char* version, unsigned len) {
    snprintf(version, len, "580.00");
    return SUCCESS;
}

// As the fake driver places them: one on each bus, from 1.
NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char* id, Gpu** gpu) {
    unsigned domain, bus, device, function;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return INVALID_ARGUMENT;
    if (bus < 1 || bus > GPUS_MAX) return NOT_FOUND;
    *gpu = &gpus[bus - 1];
    return SUCCESS;
}

NVML_API nvmlDeviceGetUUID(const Gpu* gpu, char* uuid, unsigned len) {
    snprintf(uuid, len, "GPU-00000000-0000-0000-0000-%012u", number(gpu));
    return SUCCESS;
}

NVML_API nvmlDeviceGetUtilizationRates(const Gpu* gpu, Utilization* rates) {
    *rates = {40 + number(gpu), 10};
    return SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(const Gpu* gpu, Memory* memory) {
    if (memory->version != (sizeof(Memory) | 2u << 24)) return INVALID_ARGUMENT;
    const unsigned long long used = (1 + number(gpu)) * GIB;
    *memory = {memory->version, 80 * GIB, 0, 80 * GIB - used, used};
    return SUCCESS;
}

NVML_API nvmlDeviceGetPowerUsage(const Gpu*, unsigned* milliwatts) {
    *milliwatts = 123'500;
    return SUCCESS;
}

NVML_API nvmlDeviceGetPowerManagementLimit(const Gpu* gpu, unsigned* milliwatts) {
    if (number(gpu) == 1) return NOT_SUPPORTED;
    *milliwatts = 700'000;
    return SUCCESS;
}

// Each look costs two and a half joules.
NVML_API nvmlDeviceGetTotalEnergyConsumption(Gpu* gpu, unsigned long long* millijoules) {
    *millijoules = gpu->energy_mj.fetch_add(2'500);
    return SUCCESS;
}
