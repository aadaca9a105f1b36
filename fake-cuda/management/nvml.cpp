// A libnvidia-ml.so.1 beside the fake driver, with the functions that a node calls, for the GPUs of
// the fake driver. The figures are derived from the GPU's index, and the memory in use includes
// this process's. The second GPU does not report its power limit, like some real GPUs.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

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

// Memory that this process uses on a GPU, from the driver beside this library; 0 if the process has
// not opened the driver.
unsigned long long used_here(unsigned gpu) {
    static const auto used_bytes = [] {
        Dl_info own = {};
        dladdr(reinterpret_cast<void*>(&used_here), &own);
        const std::string path = own.dli_fname;
        const std::string beside = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
        void* driver = dlopen(beside.c_str(), RTLD_NOW | RTLD_NOLOAD);
        void* found = driver == nullptr ? nullptr : dlsym(driver, "fakecuda_used_bytes");
        return reinterpret_cast<unsigned long (*)(unsigned)>(found);
    }();
    return used_bytes == nullptr ? 0 : used_bytes(gpu);
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

// The fake driver has one GPU per bus, from bus 1.
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
    const unsigned long long used = (1 + number(gpu)) * GIB + used_here(number(gpu));
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

// Each reading adds two and a half joules.
NVML_API nvmlDeviceGetTotalEnergyConsumption(Gpu* gpu, unsigned long long* millijoules) {
    *millijoules = gpu->energy_mj.fetch_add(2'500);
    return SUCCESS;
}

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };

// Clocks of an H200, like the fake driver.
NVML_API nvmlDeviceGetClockInfo(const Gpu*, int clock, unsigned* mhz) {
    if (clock != CLOCK_SM && clock != CLOCK_MEMORY) return INVALID_ARGUMENT;
    *mhz = clock == CLOCK_SM ? 1'980 : 3'201;
    return SUCCESS;
}

NVML_API nvmlDeviceGetCurrPcieLinkGeneration(const Gpu*, unsigned* generation) {
    *generation = 5;
    return SUCCESS;
}

NVML_API nvmlDeviceGetCurrPcieLinkWidth(const Gpu*, unsigned* lanes) {
    *lanes = 16;
    return SUCCESS;
}
