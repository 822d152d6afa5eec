#!/usr/bin/env python3
"""Compile the CUDA kernels for every supported architecture into kernels/compiled/.

    python3 kernels/build.py            compile with the CUDA compiler from PyPI (installed into a separate folder)
    python3 kernels/build.py --nvcc N   compile with the compiler at path N
    python3 kernels/build.py --check    compile into memory and compare with the files that are there; check also that
                                        the log of the tests on a GPU (gpu-tests.log) belongs to these files

The compiler needs no GPU. The folder of the compiler is reused; TRUESHOT_NVCC_DIR says where it is (default:
target/nvcc of the workspace). The files are compressed (LZMA). A file whose content has not changed is not written, so
comments in the sources change neither the files nor the hashes in the log.
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
# The parts of CUDA 13.0 that compiling needs. The versions are fixed, because another compiler would make other
# binaries.
PACKAGES = ["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88",
            "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85"]
# The modules, with the options of nvcc that make them. A binary (cubin) runs on all GPUs of its major version: sm_80 on
# compute capability 8.x, sm_90a on 9.0 (Hopper), where -DWGMMA adds the kernels with Hopper's matrix instructions. For
# all other GPUs, the driver compiles compute_80 (PTX, NVIDIA's portable assembly) at the first start. More binaries
# would make every installation larger. src/compiled_kernels.rs chooses the module for a GPU.
TARGETS = {
    "sm_80": ["-cubin", "-gencode=arch=compute_80,code=sm_80"],
    "sm_90a": ["-cubin", "-DWGMMA", "-gencode=arch=compute_90a,code=sm_90a"],
    "compute_80": ["-ptx", "-gencode=arch=compute_80,code=compute_80"],
}


def stored_module(name):
    """The compiled module that is stored for a target, or None if it does not exist."""
    path = COMPILED / f"{name}.lzma"
    return lzma.decompress(path.read_bytes()) if path.exists() else None


def untested_files():
    """The compiled files that are not those of the last tests on a GPU, whose log begins with their SHA-256."""
    log = KERNELS.parent / "gpu-tests.log"
    tested = set(log.read_text().splitlines()) if log.exists() else set()
    # Lines in the format of sha256sum, as the log has them.
    lines = {path.name: f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in COMPILED.glob("*.lzma")}
    return sorted(name for name, line in lines.items() if line not in tested)


def installed_compiler():
    """The compiler from PyPI, installed on the first call."""
    folder = pathlib.Path(os.environ.get("TRUESHOT_NVCC_DIR", WORKSPACE / "target" / "nvcc"))
    compilers = list(folder.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc"))
    if not compilers:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *PACKAGES], check=True)
        compilers = list(folder.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc"))
    return compilers[0]


def compile_target(nvcc, name):
    """The bytes of a target's module. kernels.cu includes all other files."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "module"
        command = [nvcc, "-std=c++17", "-O3", *TARGETS[name], "-o", out, "kernels.cu"]
        subprocess.run(command, cwd=KERNELS, check=True)
        return out.read_bytes()


def main():
    """Compile all targets, then compare or write them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", type=pathlib.Path, help="the CUDA compiler [default: the one from PyPI]")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 if a file differs")
    arguments = parser.parse_args()
    nvcc = arguments.nvcc or installed_compiler()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = dict(zip(TARGETS, pool.map(lambda name: compile_target(nvcc, name), TARGETS)))
    # The modules are compared, not the compressed files.
    changed = [name for name, module in modules.items() if stored_module(name) != module]
    if arguments.check:
        for name in changed:
            print(f"{COMPILED / name}.lzma does not belong to the sources; run kernels/build.py", file=sys.stderr)
        for name in untested_files():
            print(f"{name} has changed since the tests ran on a GPU; run crates/cuda/gpu-tests", file=sys.stderr)
        return 1 if changed or untested_files() else 0
    COMPILED.mkdir(exist_ok=True)
    for name in changed:
        compressed = lzma.compress(modules[name], format=lzma.FORMAT_ALONE, preset=9 | lzma.PRESET_EXTREME)
        (COMPILED / f"{name}.lzma").write_bytes(compressed)
        print(f"{name}: {len(modules[name]) // 1024} KiB, compressed {len(compressed) // 1024} KiB")
    if not changed:
        print("nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
