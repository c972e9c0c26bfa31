/* A libnvidia-ml.so.1 for machines without GPUs: what nvidia-ml-py, W&B and TensorFlow ask of it.
   Values are steps of time, as in nvml_stub.py, which also names the environment variables. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef void *Device;

static double number_of(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

static unsigned count(void) { return (unsigned)number_of("NVML_STUB_GPUS", 4); }

/* A device is its index + 1, so that none is NULL. */
static unsigned index_of(Device device) { return (unsigned)(size_t)device - 1; }

static unsigned step(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return (unsigned)((unsigned long long)((now.tv_sec + now.tv_usec / 1e6) / number_of("NVML_STUB_SECONDS", 2)) % 6);
}

/* The code that a call must return: NAME CODE a line, in the file that NVML_STUB_FAILURES names. */
static int failure(const char *function) {
    char name[128];
    int code, found = SUCCESS;
    const char *path = getenv("NVML_STUB_FAILURES");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return SUCCESS;
    while (fscanf(file, "%127s %d", name, &code) == 2)
        if (!strcmp(name, function)) found = code;
    fclose(file);
    return found;
}

#define CHECK(device)                                                     \
    do {                                                                  \
        int code = failure(__func__);                                     \
        if (code != SUCCESS) return code;                                 \
        if (!(device) || index_of(device) >= count()) return INVALID_ARGUMENT; \
    } while (0)

static int copy(char *target, unsigned length, const char *text) {
    snprintf(target, length, "%s", text);
    return SUCCESS;
}

int nvmlInit_v2(void) { return failure("nvmlInit_v2"); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return failure("nvmlInit_v2"); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) { return copy(version, length, "580.00"); }
int nvmlSystemGetNVMLVersion(char *version, unsigned length) { return copy(version, length, "13.580.00"); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *found) { *found = count(); return failure(__func__); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    *device = (Device)(size_t)(index + 1);
    CHECK(*device);
    return SUCCESS;
}

/* 00000000:0I:00.0, with or without the long domain */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *device) {
    const char *colon = strchr(bus, ':');
    unsigned number = colon ? (unsigned)strtoul(colon + 1, NULL, 16) : 0;
    if (number < 1 || number > count()) return NOT_FOUND;
    *device = (Device)(size_t)number;
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    unsigned index;
    if (sscanf(uuid, "GPU-%8x", &index) != 1 || index >= count()) return NOT_FOUND;
    *device = (Device)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetIndex(Device device, unsigned *index) { CHECK(device); *index = index_of(device); return SUCCESS; }

int nvmlDeviceGetName(Device device, char *name, unsigned length) {
    CHECK(device);
    return copy(name, length, "Stub GPU");
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    CHECK(device);
    snprintf(uuid, length, "GPU-%08x-0000-0000-0000-000000000000", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    CHECK(device);
    rates->gpu = 40 + 10 * index_of(device) + 5 * step();
    rates->memory = rates->gpu / 2;
    return SUCCESS;
}

static unsigned long long used(Device device) {
    return ((index_of(device) + 1ull) << 30) + ((unsigned long long)step() << 28);
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    CHECK(device);
    memory->total = 80ull << 30;
    memory->used = used(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory) {
    CHECK(device);
    memory->total = 80ull << 30;
    memory->reserved = 0;
    memory->used = used(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) {
    CHECK(device);
    (void)sensor;
    *celsius = 40 + index_of(device) + step();
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    CHECK(device);
    *milliwatts = 1000 * (100 + 20 * index_of(device) + 25 * step());
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) {
    CHECK(device);
    *milliwatts = 700000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *megahertz) {
    CHECK(device);
    *megahertz = kind == 2 ? 2600 : 1200 + 15 * step();
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(Device device, int kind, int counter, int place, unsigned long long *errors) {
    CHECK(device);
    (void)kind, (void)counter, (void)place;
    *errors = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *number, void *processes) {
    CHECK(device);
    (void)processes;
    *number = 0;
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *number, void *processes) {
    CHECK(device);
    (void)processes;
    *number = 0;
    return SUCCESS;
}

int nvmlDeviceGetBrand(Device device, int *brand) { CHECK(device); *brand = 13; return SUCCESS; }
int nvmlDeviceGetArchitecture(Device device, unsigned *kind) { CHECK(device); *kind = 9; return SUCCESS; }
int nvmlDeviceGetNumGpuCores(Device device, unsigned *cores) { CHECK(device); *cores = 16896; return SUCCESS; }

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    CHECK(device);
    *major = 9, *minor = 0;
    return SUCCESS;
}
