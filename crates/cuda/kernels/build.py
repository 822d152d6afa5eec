#!/usr/bin/env python3
"""Compile the CUDA kernels for every supported architecture into kernels/compiled/.

    python3 kernels/build.py            compile with the CUDA compiler from PyPI (installed into a folder of its own)
    python3 kernels/build.py --nvcc N   compile with the compiler N
    python3 kernels/build.py --check    compile into memory and compare with the files that are there; check also that
                                        the log of the tests on a GPU (gpu-tests.log) belongs to these sources

The compiler needs no GPU. The folder of the compiler is reused; TRUESHOT_NVCC_DIR says where it is (default:
target/nvcc of the workspace). The files are compressed (LZMA), and SOURCES lists the SHA-256 of every source file, so that a
change of a kernel without a new build is noticed even where the compiler cannot be installed.
"""

import argparse
import concurrent.futures
import hashlib
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile

KERNELS = pathlib.Path(__file__).resolve().parent
COMPILED = KERNELS / "compiled"
WORKSPACE = KERNELS.parents[2]
PACKAGES = ["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88",
            "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85"]
# A binary runs on all GPUs of its major version. The driver compiles compute_80 for all others at the first start. More binaries
# would make every installation larger.
TARGETS = {
    "sm_80": ["-cubin", "-gencode=arch=compute_80,code=sm_80"],
    "sm_90a": ["-cubin", "-DWGMMA", "-gencode=arch=compute_90a,code=sm_90a"],
    "compute_80": ["-ptx", "-gencode=arch=compute_80,code=compute_80"],
}


def sources():
    return sorted([*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")])


def source_hashes():
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sources()]
    return "\n".join(lines) + "\n"


def untested_sources():
    """The sources that have changed since the tests ran on a GPU."""
    log = KERNELS.parent / "gpu-tests.log"
    tested = set(log.read_text().splitlines()) if log.exists() else set()
    return [line.split()[1] for line in source_hashes().splitlines() if line not in tested]


def installed_compiler():
    """The compiler from PyPI, installed on the first call."""
    folder = pathlib.Path(os.environ.get("TRUESHOT_NVCC_DIR", WORKSPACE / "target" / "nvcc"))
    found = list(folder.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc"))
    if not found:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *PACKAGES], check=True)
        found = list(folder.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc"))
    return found[0]


def compile_target(nvcc, name):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "module"
        command = [nvcc, "-std=c++17", "-O3", *TARGETS[name], "-o", out, "kernels.cu"]
        subprocess.run(command, cwd=KERNELS, check=True)
        return out.read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", type=pathlib.Path, help="the CUDA compiler [default: the one from PyPI]")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 if a file differs")
    arguments = parser.parse_args()
    nvcc = arguments.nvcc or installed_compiler()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = dict(zip(TARGETS, pool.map(lambda name: compile_target(nvcc, name), TARGETS)))
    if arguments.check:
        different = [name for name, module in modules.items()
                     if lzma.decompress((COMPILED / f"{name}.lzma").read_bytes()) != module]
        for name in untested_sources():
            print(f"kernels/{name} has changed since the tests ran on a GPU; run crates/cuda/gpu-tests", file=sys.stderr)
        for name in different:
            print(f"{COMPILED / name}.lzma does not belong to the sources; run kernels/build.py", file=sys.stderr)
        return 1 if different or untested_sources() else 0
    COMPILED.mkdir(exist_ok=True)
    for name, module in modules.items():
        compressed = lzma.compress(module, format=lzma.FORMAT_ALONE, preset=9 | lzma.PRESET_EXTREME)
        (COMPILED / f"{name}.lzma").write_bytes(compressed)
        print(f"{name}: {len(module) // 1024} KiB, compressed {len(compressed) // 1024} KiB")
    (COMPILED / "SOURCES").write_text(source_hashes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
