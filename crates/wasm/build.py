#!/usr/bin/env python3
"""Compile the engine of exported pages into crates/cli/assets/engine.wasm.

    python3 crates/wasm/build.py            compile (needs: rustup target add wasm32-unknown-unknown)
    python3 crates/wasm/build.py --check    compile and compare with the file that is there

The module depends on the version of the compiler, which the file engine.rustc next to it names. Paths of this machine are
removed. With another compiler, --check compares nothing, says so, and exits with 4.
"""

import argparse
import os
import pathlib
import subprocess
import sys

WORKSPACE = pathlib.Path(__file__).resolve().parents[2]
MODULE = WORKSPACE / "crates" / "cli" / "assets" / "engine.wasm"
COMPILER = MODULE.with_name("engine.rustc")
TARGET = "wasm32-unknown-unknown"


def compiler_version():
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout


def compiled():
    cargo_home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    registries = sorted((cargo_home / "registry" / "src").glob("*"))
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    flags = ["-Ctarget-feature=+simd128", f"--remap-path-prefix={WORKSPACE}/=",
             *(f"--remap-path-prefix={registry}/=" for registry in registries),
             f"--remap-path-prefix={sysroot}/="]
    environment = {**os.environ, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags)}
    command = ["cargo", "build", "--profile", "page", "-p", "trueshot-wasm", "--target", TARGET, "--locked"]
    subprocess.run(command, cwd=WORKSPACE, env=environment, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", WORKSPACE / "target"))
    return (target / TARGET / "page" / "trueshot_wasm.wasm").read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 if the file differs")
    arguments = parser.parse_args()
    version = compiler_version()
    if not arguments.check:
        module = compiled()
        MODULE.parent.mkdir(exist_ok=True)
        MODULE.write_bytes(module)
        COMPILER.write_text(version)
        print(f"{MODULE.relative_to(WORKSPACE)}: {len(module) / 1024:.0f} KiB")
        return 0
    if version != COMPILER.read_text():
        print(f"the engine was compiled with {COMPILER.read_text().strip()}; this is {version.strip()}: not compared",
              file=sys.stderr)
        return 4
    if compiled() != MODULE.read_bytes():
        print(f"{MODULE.relative_to(WORKSPACE)} does not belong to the sources; run crates/wasm/build.py",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
