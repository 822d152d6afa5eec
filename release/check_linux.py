"""Checks that a program or a wheel runs on every Linux with glibc 2.17 (2014) or newer.

    python release/check_linux.py target/x86_64-unknown-linux-gnu/release/trueshot
    python release/check_linux.py --wheel target/dist/trueshot-0.1.0-cp310-abi3-manylinux2014_x86_64.whl

A program may need the libraries of glibc and the unwinder of GCC, and no symbol that is newer than glibc 2.17. A wheel
has to pass auditwheel as manylinux2014 and must stay below 23 MB.
"""

import argparse
import pathlib
import re
import subprocess
import sys

GLIBC = (2, 17)
# The dynamic loader, and libraries of glibc and GCC.
LIBRARIES = re.compile(r"^(ld-linux.*|lib(c|dl|gcc_s|m|pthread|rt|util))\.so\.\d+$")
MAX_WHEEL_BYTES = 23_000_000


def newest_glibc(file):
    """The libraries that an ELF file needs, and the newest version of glibc whose symbols it uses."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    libraries, versions = [], [(0, 0)]
    for section in ELFFile(file).iter_sections():
        if isinstance(section, DynamicSection):
            libraries += [tag.needed for tag in section.iter_tags("DT_NEEDED")]
        if isinstance(section, GNUVerNeedSection):
            for _, symbols in section.iter_versions():
                names = (re.fullmatch(r"GLIBC_([\d.]+)", symbol.name) for symbol in symbols)
                versions += [tuple(map(int, name[1].split("."))) for name in names if name]
    return libraries, max(versions)


def check_program(path):
    """Ends the script with an error if the program needs other libraries or newer symbols than allowed."""
    with open(path, "rb") as file:
        libraries, version = newest_glibc(file)
    shown = ".".join(map(str, version))
    others = [library for library in libraries if not LIBRARIES.match(library)]
    if others:
        sys.exit(f"{path} needs {', '.join(others)}; allowed are the libraries of glibc and libgcc_s")
    if version > GLIBC:
        sys.exit(f"{path} uses symbols of glibc {shown}; allowed is 2.17 or older")
    print(f"{path}: needs glibc {shown} or newer ({', '.join(libraries)})")


def check_wheel(path):
    """Ends the script with an error if auditwheel rejects the wheel, or it is too large."""
    report = subprocess.run(["auditwheel", "show", path], check=True, capture_output=True, text=True).stdout
    if "manylinux_2_17" not in report:
        sys.exit(f"{path} is not a manylinux2014 wheel:\n{report}")
    size = pathlib.Path(path).stat().st_size
    if size >= MAX_WHEEL_BYTES:
        sys.exit(f"{path} has {size} bytes; allowed are {MAX_WHEEL_BYTES}")
    print(f"{path}: manylinux2014, {size / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", action="store_true", help="the files are wheels")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    for path in arguments.files:
        check_wheel(path) if arguments.wheel else check_program(path)


if __name__ == "__main__":
    main()
