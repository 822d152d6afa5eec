"""What a measurement must say about where it was made: processor, versions, date, load.

A figure without these cannot be compared with anything, so every script here writes them next to its
result. Only the standard library is used: the script that starts the peers need not run in their
environment.
"""
from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

# glibc hands large buffers back to the kernel and takes them anew, a page fault per 4 KiB; PyTorch on the
# CPU is up to twice as fast when that is turned off. The peers' figure is the better of both.
TUNED_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

QUIET_LOAD = 0.3


def cpu_model() -> str:
    """The processor's name as Linux has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """The vector extensions that decide how fast f32 can be."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return [name for name in ("avx2", "fma", "avx512f", "avx512_fp16", "amx_bf16") if name in words]


def versions(python: str, packages: list[str]) -> dict[str, str]:
    """Versions of an interpreter and of packages installed for it; missing ones are left out."""
    program = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    ran = subprocess.run([python, "-c", program, *packages], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def trueshot_version(binary: str) -> str:
    """What the binary says it is."""
    ran = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return ran.stdout.strip().removeprefix("trueshot ")


def describe() -> dict:
    """The machine now; to be called before anything is started on it."""
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(
            f"warning: the load average is {load:.2f} before the start; other work distorts what is "
            f"measured (wait until it is below {QUIET_LOAD})",
            file=sys.stderr,
        )
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": instruction_sets(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average_before": round(load, 2),
    }


def sentence(machine: dict, versions: dict[str, str], threads: int) -> str:
    """The same for a reader."""
    load = machine["load_average_before"]
    noisy = "" if load <= QUIET_LOAD else " **(the machine was not quiet)**"
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cpu']} ({', '.join(machine['instruction_sets'])}), {machine['cores']} cores of which "
        f"{threads} used, {machine['memory_gb']} GB; {named}. "
        f"{machine['date']}, load average before the start {load}{noisy}."
    )
