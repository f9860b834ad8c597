"""A stand-in for NVIDIA's library, since the machines of tests have no GPU of theirs.

It is a shared library with the names and structures of NVML, compiled here. What is real is everything above
it: nvidia-ml-py loads it as it would load the driver's, and the agent asks nvidia-ml-py. It shows nothing of
what a real GPU would say.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long device;  /* the index of a GPU, above 0 */
struct memory { unsigned long long total, free, used; };
struct rates { unsigned int gpu, memory; };

/* What a file of this GPU says: a number, or -1 where there is none. */
static long said(const char *what, device gpu) {
  char path[4096];
  long number = -1;
  snprintf(path, sizeof path, "%s/%s-%ld", getenv("STAND_IN_NVML"), what, gpu - 1);
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  if (fscanf(file, "%ld", &number) != 1) number = -1;
  fclose(file);
  return number;
}
static const char *name(void) {
  const char *folder = getenv("STAND_IN_NVML"), *last = folder ? strrchr(folder, '/') : 0;
  return last ? last + 1 : "";
}
int nvmlInit_v2(void) { return getenv("STAND_IN_NVML") ? 0 : 9; }  /* else: the driver is not loaded */
int nvmlInitWithFlags(unsigned int flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "as the stand-in says"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *gpu) { *gpu = index + 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *gpu) {
  *gpu = atol(strrchr(uuid, '-') + 1) + 1;
  return 0;
}
int nvmlDeviceGetName(device gpu, char *text, unsigned int length) {
  snprintf(text, length, "NVIDIA H100 80GB HBM3");
  return 0;
}
int nvmlDeviceGetUUID(device gpu, char *text, unsigned int length) {
  snprintf(text, length, "GPU-%s-%ld", name(), gpu - 1);
  return 0;
}
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *found) {
  found->total = 80000000000ULL;
  found->used = said("used", gpu) < 0 ? 500000000ULL : (unsigned long long)said("used", gpu);
  found->free = found->total - found->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(device gpu, struct rates *found) {
  long busy = said("busy", gpu);
  if (busy < 0) return 3;  /* not supported */
  found->gpu = (unsigned int)busy;
  found->memory = 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned int *count, void *infos) {
  *count = 0;
  return 0;
}
"""


def stand_in(folder: Path) -> dict[str, str]:
    """The environment of a process to which NVIDIA's library is this one; skips where there is no compiler.

    A file `busy-0` in the folder says how busy GPU 0 is, in per cent, and `used-0` how many bytes are in use.
    """
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, which makes the stand-in for NVIDIA's library")
    (folder / "nvml.c").write_text(SOURCE, encoding="ascii")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(folder / "nvml.c")],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_NVML": str(folder)}


def say(folder: Path, busy: int, used_gb: float = 0.5, gpu: int = 0) -> None:
    """From now on the stand-in says so of a GPU."""
    for name, number in ((f"used-{gpu}", round(used_gb * 1e9)), (f"busy-{gpu}", busy)):
        new = folder / f"{name}.new"
        new.write_text(str(number), encoding="ascii")
        new.rename(folder / name)  # at once: a reader sees the old number or the new one
