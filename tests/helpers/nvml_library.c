/* A libnvidia-ml.so.1 for tests on hosts without GPUs: one GPU, whose values stand in the file that NVML_VALUES names,
   a line "name value" each. A value that is absent is "not supported". Layouts follow nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;

static int find(const char *name, char *value) {
    char line[256], key[128];
    FILE *file = fopen(getenv("NVML_VALUES"), "r");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "%127s %127[^\n]", key, value) == 2 && strcmp(key, name) == 0;
    if (file) fclose(file);
    return found;
}
static int number(const char *name, unsigned long long *value) {
    char text[128];
    if (!find(name, text)) return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return SUCCESS;
}
static int unsigned_of(const char *name, unsigned *value) {
    unsigned long long wide;
    int status = number(name, &wide);
    if (status == SUCCESS) *value = (unsigned)wide;
    return status;
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return "error of the test library"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)1;
    return index == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    char text[128];
    if (!find("driver", text)) return NOT_SUPPORTED;
    snprintf(version, length, "%s", text);
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return unsigned_of("cuda", (unsigned *)version); }
int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *count) { return number("ecc", count); }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *degrees) { return unsigned_of("temperature", degrees); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits) { return number("throttle", bits); }
int nvmlDeviceGetPersistenceMode(void *gpu, unsigned *mode) { return unsigned_of("persistence", mode); }
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    int status = unsigned_of("rows_pending", pending);
    return status == SUCCESS ? unsigned_of("rows_failed", failed) : status;
}
int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *pci) {
    char text[128];
    memset(pci, 0, sizeof *pci);
    if (!find("bus", text)) return NOT_SUPPORTED;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", text);
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *processes) {
    unsigned present = 0, room = *count;
    unsigned_of("processes", &present);
    *count = present;
    if (present == 0) return SUCCESS;
    if (room < present) return INSUFFICIENT_SIZE;
    memset(processes, 0, present * sizeof *processes);
    return SUCCESS;
}
