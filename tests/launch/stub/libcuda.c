/* A CUDA driver with no GPU behind it: enough of libcuda.so.1 for Triton to load a binary and launch it.
 *
 * Compiled by conftest.py against the cuda.h of Triton's wheel, so that the prototypes are the real ones. Every binary
 * loaded and every launch is one line of JSON appended to the file $CUDA_STUB_LOG. The parameters of a launch are read
 * as a real driver reads them: their number and sizes come from the binary's own .nv.info section, not from the caller.
 * What a real H200 refuses (too much shared memory, too many threads, an empty grid) is refused here.
 */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { SM_COUNT = 132, SHARED_OPTIN = 232448, SHARED_PER_SM = 233472, MAX_THREADS = 1024, MAX_PARAMS = 256 };

typedef struct {
  const uint8_t *image;
} Module;

typedef struct {
  char name[512];
  int param_count;
  uint16_t param_sizes[MAX_PARAMS];
  int dynamic_shared; /* what the caller opted in to */
} Function;

/* Shared memory that one block may have: $CUDA_STUB_SHARED makes a device that has less than its model. */
static int shared_optin(void) {
  const char *less = getenv("CUDA_STUB_SHARED");
  return less ? atoi(less) : SHARED_OPTIN;
}

static int context; /* its address is the one context there is */
static _Thread_local int has_context;

/* ---- the log ---- */

static FILE *open_log(void) {
  const char *path = getenv("CUDA_STUB_LOG");
  return path ? fopen(path, "a") : NULL;
}

/* ---- parameters, from the binary ---- */

/* One entry of .nv.info: format, attribute, then a size and a payload (format 4) or two inline bytes. */
static void read_info(Function *function, const uint8_t *info, size_t size) {
  const uint8_t EIFMT_SVAL = 0x04, EIATTR_KPARAM_INFO = 0x17;
  for (size_t at = 0; at + 4 <= size;) {
    uint16_t payload;
    memcpy(&payload, info + at + 2, sizeof payload);
    if (info[at] == EIFMT_SVAL && info[at + 1] == EIATTR_KPARAM_INFO) {
      uint16_t ordinal;
      uint32_t packed; /* the size lies in the upper 14 bits */
      memcpy(&ordinal, info + at + 8, sizeof ordinal);
      memcpy(&packed, info + at + 12, sizeof packed);
      if (ordinal < MAX_PARAMS) {
        function->param_sizes[ordinal] = packed >> 18;
        if (ordinal >= function->param_count)
          function->param_count = ordinal + 1;
      }
    }
    at += info[at] == EIFMT_SVAL ? 4 + payload : 4;
  }
}

/* Returns whether the image holds a function of that name. */
static int read_function(Function *function, const uint8_t *image, const char *name) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return 0;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header.e_shoff);
  const char *names = (const char *)image + sections[header.e_shstrndx].sh_offset;
  char wanted[600];
  snprintf(wanted, sizeof wanted, ".nv.info.%s", name);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (strcmp(names + sections[i].sh_name, wanted) == 0) {
      snprintf(function->name, sizeof function->name, "%s", name);
      read_info(function, image + sections[i].sh_offset, sections[i].sh_size);
      return 1;
    }
  }
  return 0;
}

/* ---- device and context ---- */

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS                ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                              : "refused by the stub of the CUDA driver";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = SM_COUNT; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = shared_optin(); break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = SHARED_PER_SM; break;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
  default: *value = 1;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  (void)device;
  *out = (CUcontext)&context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out) {
  *out = has_context ? (CUcontext)&context : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext current) {
  has_context = current != NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  (void)limit;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  (void)limit, (void)value;
  return CUDA_SUCCESS;
}

/* Any address passes for device memory: the tensors of these tests lie on the host and are never read. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  (void)attribute;
  *(CUdeviceptr *)data = pointer;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

/* ---- modules and functions ---- */

static _Thread_local CUstreamCaptureMode capture_mode; /* global, until a thread asks for another */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  const CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* While $CUDA_STUB_FULL is set there is no memory for another module. While $CUDA_STUB_CAPTURED is, a stream is captured
 * by a driver that loads nothing then but for a thread that asked for it. */
CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  if (getenv("CUDA_STUB_FULL"))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (getenv("CUDA_STUB_CAPTURED") && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Module *module = malloc(sizeof *module);
  module->image = image; /* Triton keeps the binary alive as long as its CompiledKernel */
  *out = (CUmodule)module;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  free(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  Function *function = calloc(1, sizeof *function);
  if (!read_function(function, ((Module *)module)->image, name)) {
    free(function);
    return CUDA_ERROR_NOT_FOUND;
  }
  FILE *log = open_log();
  if (log) {
    fprintf(log, "{\"event\": \"load\", \"name\": \"%s\"}\n", name);
    fclose(log);
  }
  *out = (CUfunction)function;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = MAX_THREADS; break;
  default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  /* As drivers before shared memory modes have it; Triton 3.9 then falls back to the attribute below. */
  if (attribute >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value > shared_optin())
      return CUDA_ERROR_INVALID_VALUE;
    ((Function *)function)->dynamic_shared = value;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function, (void)config;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
  (void)function, (void)config;
  *clusters = SM_COUNT;
  return CUDA_SUCCESS;
}

/* ---- launching ---- */

static void log_attributes(FILE *log, const CUlaunchConfig *config) {
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const unsigned *value = (const unsigned *)&config->attrs[i].value;
    fprintf(log, "%s[%d, %u, %u, %u]", i ? ", " : "", config->attrs[i].id, value[0],
            config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ? value[1] : 0,
            config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ? value[2] : 0);
  }
}

static void log_launch(const CUlaunchConfig *config, const Function *function, void **params) {
  FILE *log = open_log();
  if (!log)
    return;
  fprintf(log, "{\"event\": \"launch\", \"name\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], ",
          function->name, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
          config->blockDimZ);
  fprintf(log, "\"shared_bytes\": %u, \"stream\": %llu, \"attributes\": [", config->sharedMemBytes,
          (unsigned long long)(uintptr_t)config->hStream);
  log_attributes(log, config);
  fprintf(log, "], \"params\": [");
  for (int i = 0; i < function->param_count; ++i) {
    fprintf(log, "%s\"", i ? ", " : "");
    for (int byte = 0; byte < function->param_sizes[i]; ++byte)
      fprintf(log, "%02x", ((const uint8_t *)params[i])[byte]);
    fprintf(log, "\"");
  }
  fprintf(log, "]}\n");
  fclose(log);
}

/* As many launches as $CUDA_STUB_REFUSED says are refused, the first after it was set. */
static int is_refused(void) {
  static int refused;
  const char *most = getenv("CUDA_STUB_REFUSED");
  return most && refused++ < atoi(most);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **params, void **extra) {
  Function *function = (Function *)handle;
  unsigned limit = function->dynamic_shared ? function->dynamic_shared : 49152;
  (void)extra;
  if (!has_context)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || config->gridDimY > 65535 ||
      config->gridDimZ > 65535 || config->blockDimX * config->blockDimY * config->blockDimZ > MAX_THREADS ||
      config->sharedMemBytes > limit || is_refused())
    return CUDA_ERROR_INVALID_VALUE;
  log_launch(config, function, params);
  return CUDA_SUCCESS;
}

/* ---- TMA descriptors: looked up by name when the driver module is loaded, made only by kernels that use TMA ---- */

/* A hash of everything that a descriptor says but its address. */
static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211u; }

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dim, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  const char *maps = getenv("CUDA_STUB_MAPS"); /* drivers that never were */
  const uint64_t small = 1u << 21; /* what drivers up to 13.1 set wrongly, and Triton clears */
  uint64_t hash = mixed(mixed(mixed(mixed(mixed(14695981039346656037u, type), rank), interleave), swizzle), promotion);
  if (!has_context) /* as an H200's driver says, CUDA 13.0 */
    return CUDA_ERROR_INVALID_CONTEXT;
  if ((uintptr_t)map % 64 || (maps && !strcmp(maps, "checked") && (uintptr_t)address < 4096))
    return CUDA_ERROR_INVALID_VALUE;
  hash = mixed(hash, fill);
  if (maps && !strcmp(maps, "mixed"))
    hash = mixed(hash, (uintptr_t)address);
  for (cuuint32_t i = 0; i < rank; ++i)
    hash = mixed(mixed(mixed(mixed(hash, dim[i]), i + 1 < rank ? strides[i] : 0), box[i]), element_strides[i]);
  memset(map, 0, sizeof *map);
  memcpy(map, &address, sizeof address);
  memcpy((char *)map + 8, &small, sizeof small);
  memcpy((char *)map + 16, &hash, sizeof hash);
  return CUDA_SUCCESS;
}
