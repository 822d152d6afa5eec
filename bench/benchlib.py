"""What the benchmark scripts share: command lines, files, facts about the machine, running programs.

Only the standard library is imported here. Packages such as NumPy are imported where they are needed, so that every
script answers `--help` without them and can name the package that is missing.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import hashlib
import importlib.util
import json
import math
import os
import platform
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
PEERS = BENCH / "peers"
RESULTS = ROOT / "docs" / "results"


def fail(message: str) -> NoReturn:
    """Ends the script with an error message and exit status 1."""
    sys.exit(f"error: {message}")


# --- Command lines ------------------------------------------------------------------------------------


def new_parser(description: str) -> argparse.ArgumentParser:
    """A parser whose help is the documentation of the script."""
    return argparse.ArgumentParser(
        description=description.strip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def positive(text: str) -> int:
    """An argument type: a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return value


def existing_file(text: str) -> Path:
    """An argument type: a file that exists, as an absolute path."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file '{text}'")
    return Path(text).resolve()


def existing_folder(text: str) -> Path:
    """An argument type: a folder that exists, as an absolute path."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder '{text}'")
    return Path(text).resolve()


def built_program(text: str) -> Path:
    """An argument type: a program of this workspace that has been built, as an absolute path."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"there is no program '{text}'; build it with 'cargo build --release' (examples: with '--examples')"
        )
    return Path(text).resolve()


def target(*parts: str) -> str:
    """Where Cargo puts a file of the release build."""
    folder = os.environ.get("CARGO_TARGET_DIR") or str(ROOT / "target")
    return str(Path(folder, "release", *parts))


def add_trueshot(parser: argparse.ArgumentParser) -> None:
    """Adds `--trueshot`, the program to measure."""
    parser.add_argument("--trueshot", type=built_program, default=target("trueshot"), metavar="FILE",
                        help="the program, built with --release [default: the one in target/release]")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Adds `--serve` and `--trueshot`, for `start_server`."""
    parser.add_argument("--serve", default="", metavar="OPTIONS",
                        help="more options of `trueshot serve`, in one string")
    add_trueshot(parser)


def add_out(parser: argparse.ArgumentParser, page: str, json_too: bool = True) -> None:
    """Adds `--out`, the page to write; `page` is the one in docs/results that the script makes."""
    beside = " and its figures to the same name with .json" if json_too else ""
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"write the page to FILE{beside} (as docs/results/{page}); without this option, the page is only "
                             "printed")


def add_threads(parser: argparse.ArgumentParser, default: int = 2) -> None:
    """Adds `--threads`, for every program that is measured."""
    parser.add_argument("--threads", type=positive, default=default, metavar="N",
                        help="threads of every program [default: %(default)s]")


def add_peer_python(parser: argparse.ArgumentParser) -> None:
    """Adds `--python`, the interpreter that runs the peers."""
    parser.add_argument("--python", default=sys.executable, metavar="FILE",
                        help="interpreter with bench/requirements.txt installed, which runs the peers "
                             "[default: the one running this script]")


PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Names of packages on PyPI that differ from the name of their module."""


def require(*modules: str, requirements: Path = BENCH / "requirements.txt") -> None:
    """Ends the script with an error that names the packages if one of these modules cannot be imported."""
    missing = [PACKAGES.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    wheel = f"; for trueshot: pip install {ROOT / 'crates' / 'python'}" if "trueshot" in missing else ""
    fail(f"{sys.executable} does not have the Python package{'s' if len(missing) > 1 else ''} {', '.join(missing)}. "
         f"Install what is needed: {sys.executable} -m pip install -r {requirements}{wheel}")


# --- Files --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` that takes its name once the block has ended without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file completely, or leaves the old one."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, result: object) -> None:
    """Writes a JSON file completely, or leaves the old one."""
    write_text(path, json.dumps(result, indent=1) + "\n")


def publish(out: Path | None, page: str, result: object = None) -> None:
    """Prints a page and, if `out` is given, writes it there and the result to the same name with `.json`."""
    if out is not None:
        write_text(out, page)
        if result is not None:
            write_json(out.with_suffix(".json"), result)
    print(page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def wrapped(markdown: str, width: int = 100) -> str:
    """A page with its paragraphs wrapped; headings, tables and code blocks are unchanged."""
    blocks = markdown.rstrip("\n").split("\n\n")
    unwrapped = ("#", "|", "```")
    fill = functools.partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(block if block.startswith(unwrapped) else fill(block) for block in blocks) + "\n"


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_header(path: Path) -> tuple[dict, int]:
    """The header of a safetensors file and the offset of its data."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            fail(f"{path} is not a safetensors file: its header would be {length} bytes of {size}")
        try:
            return json.loads(file.read(length)), 8 + length
        except ValueError as problem:
            fail(f"{path} is not a safetensors file: its header is not JSON ({problem})")


def tensor_of(header: dict, path: Path, name: str) -> dict:
    """The entry of one tensor in the header of a safetensors file: `dtype`, `shape` and `data_offsets`."""
    if name not in header:
        fail(f"{path} has no tensor '{name}', only {', '.join(key for key in header if key != '__metadata__')}")
    return header[name]


def parameter_count(path: Path) -> int:
    """The number of values in all tensors of a safetensors file."""
    header, _ = read_header(path)
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def read_embeddings(path: Path):
    """Features as f32 `[rows, dim]`, labels `[rows]` and item names (None without names) of an embeddings file."""
    require("numpy")
    import numpy as np

    dtypes = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "U8": "u1"}
    header, start = read_header(path)
    data = path.read_bytes()

    def tensor(name: str):
        """The values of one tensor; bf16 as f32."""
        entry = tensor_of(header, path, name)
        if entry["dtype"] not in dtypes:
            fail(f"{path}: '{name}' is {entry['dtype']}; supported are {', '.join(dtypes)}")
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[start + begin:start + end], dtypes[entry["dtype"]]).reshape(entry["shape"])
        # NumPy has no bf16, which is the upper half of an f32: its bits are moved there, and zeros fill the lower half.
        return (values.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else values

    items = None
    if "items" in header:
        text, offsets = tensor("items").tobytes(), tensor("item_offsets")
        items = [text[begin:end].decode() for begin, end in zip(offsets, offsets[1:])]
    return tensor("features").astype(np.float32), tensor("labels").copy(), items


def embeddings_header(classes: Sequence[str], notes: dict[str, str], tensors: Sequence[tuple]) -> bytes:
    """The header of an embeddings file with its length before it, padded to a multiple of 8 bytes.

    `tensors` are (name, dtype, shape, size in bytes) in the order of their data; `notes` are further entries of the
    metadata, such as `backbone`, the name of the network.
    """
    header: dict[str, object] = {
        "__metadata__": {"format": "trueshot-embeddings/1", "classes": json.dumps(list(classes)), **notes}
    }
    end = 0
    for name, dtype, shape, size in tensors:
        begin, end = end, end + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_embeddings(path: Path, features, labels, classes: Sequence[str], items: Sequence[str], notes: dict[str, str]) -> None:
    """Writes an embeddings file from features `[rows, dim]` (f32 or f16), class indices `[rows]`, and names; equal
    contents give equal bytes."""
    import numpy as np

    names = [item.encode() for item in items]
    # The item names are concatenated, and offsets separate them. They come last so that the other tensors are aligned.
    tensors = [
        ("labels", "I64", labels.astype("<i8")),
        ("item_offsets", "I64", np.cumsum([0, *map(len, names)]).astype("<i8")),
        ("features", f"F{8 * features.itemsize}", features.astype(features.dtype.newbyteorder("<"))),
        ("items", "U8", np.frombuffer(b"".join(names), np.uint8)),
    ]
    entries = [(name, dtype, values.shape, values.nbytes) for name, dtype, values in tensors]
    with replacing(path) as part, open(part, "wb") as file:
        file.write(embeddings_header(classes, notes, entries))
        for _, _, values in tensors:
            file.write(values.tobytes())


# --- The machine --------------------------------------------------------------------------------------

QUIET_LOAD = 0.3
"""A page says that the machine was not quiet if the load average before the start was above this. An idle machine has up
to 0.2; a program on one core adds 1."""


def cpu_model() -> str:
    """The processor's name as Linux reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """The vector extensions that decide how fast f32 arithmetic can be."""
    words: set[str] = set()
    with contextlib.suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text().split())
    return [name for name in ("avx2", "fma", "avx512f", "avx512_fp16", "amx_bf16") if name in words]


def describe_machine() -> dict:
    """Processor, memory, date and load. Call it first, so that the load is that of other programs."""
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"warning: the load average is {load:.2f} before the start; other work changes what is measured "
              f"(wait until it is below {QUIET_LOAD})", file=sys.stderr)
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": instruction_sets(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average_before": round(load, 2),
    }


def machine_sentence(machine: dict, versions: dict[str, str], threads: int) -> str:
    """The machine, the versions and the date, for the last paragraph of a page."""
    load = machine["load_average_before"]
    noisy = "" if load <= QUIET_LOAD else " **(the machine was not quiet)**"
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cpu']} ({', '.join(machine['instruction_sets'])}), {threads} of {machine['cores']} cores used, "
        f"{machine['memory_gb']} GB; {named}. "
        f"{machine['date']}, load average before the start {load}{noisy}."
    )


def package_versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Versions of an interpreter and of packages installed for it; packages that are missing are left out."""
    program = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    return json.loads(output([python, "-c", program, *packages]))


def trueshot_version(program: Path) -> str:
    """The version that the program reports."""
    return output([program, "--version"]).strip().removeprefix("trueshot ")


def process_memory(pid: int) -> dict[str, int]:
    """Memory of a process in bytes, by the names in /proc/PID/status (VmRSS, VmHWM, RssAnon, ..); empty if it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): 1024 * int(count) for name, count, _ in fields}


def mebibytes(memory: dict[str, int], key: str) -> int | None:
    """One of the figures of `process_memory`, in MiB; None if it is not among them."""
    return round(memory[key] / 2**20) if key in memory else None


# --- Running programs ---------------------------------------------------------------------------------

TUNED_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
"""Settings under which glibc keeps large buffers instead of returning them to the kernel, which then maps them again
with a page fault per 4 KiB. PyTorch on a CPU is up to twice as fast with them."""


def add_allocator(parser: argparse.ArgumentParser) -> None:
    """Adds `--allocator` for peers on a CPU."""
    parser.add_argument("--allocator", choices=["tuned", "plain"], default="tuned",
                        help="tuned: glibc keeps freed memory, up to twice as fast; plain: glibc's defaults "
                             "[default: %(default)s]")


def use_allocator(name: str) -> None:
    """Restarts the script with the settings of the allocator `tuned` or `plain`, unless it already runs with them.

    glibc reads them when a process starts, so call this first.
    """
    wanted = TUNED_ALLOCATOR if name == "tuned" else {}
    if {key: os.environ[key] for key in TUNED_ALLOCATOR if key in os.environ} != wanted:
        others = {key: value for key, value in os.environ.items() if key not in TUNED_ALLOCATOR}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**others, **wanted})


def output(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """Runs a program and returns its standard output; ends the script with its messages if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    except OSError as problem:
        fail(f"cannot run {words[0]}: {problem.strerror}")
    if done.returncode:
        fail(f"this command ended with exit status {done.returncode}:\n{' '.join(words)}\n{done.stderr.strip()}")
    return done.stdout


def start_server(
    arguments: argparse.Namespace, folder: str, before: Callable[[], None] | None = None
) -> tuple[subprocess.Popen, int]:
    """Starts `trueshot serve` and returns it with its port, which is at the end of the address it prints.

    `before` runs in the new process before the server starts.
    """
    command = [arguments.trueshot, "serve", "--port", "0", "--data-dir", folder, "--no-cache",
               *shlex.split(arguments.serve)]
    # A file, because a pipe that no process reads would block the server.
    messages = tempfile.TemporaryFile("w+")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, preexec_fn=before)
    address = server.stdout.readline().strip()
    port = address.rpartition(":")[2]
    if not port.isdigit():
        server.terminate()
        server.wait()
        messages.seek(0)
        fail(f"the server did not start: {' '.join(map(str, command))}\n{messages.read().strip()}")
    return server, int(port)


def percentiles(seconds: Sequence[float]) -> dict[str, int | None]:
    """Percentiles of response times, in milliseconds."""
    ordered = sorted(seconds)

    def milliseconds(share: float) -> int | None:
        """The time that this share of the requests did not exceed; None without requests."""
        return round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]) if ordered else None

    return {"p50_ms": milliseconds(0.5), "p90_ms": milliseconds(0.9), "p99_ms": milliseconds(0.99),
            "longest_ms": milliseconds(1)}


def json_lines(text: str) -> list[dict]:
    """The JSON objects of a text with one per line; other lines are skipped."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def progress(text: str) -> None:
    """Prints a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Program:
    """A command that prints one JSON line per workload, with `name`, `ms` and `min_ms`."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, dict]:
        """The output lines by workload."""
        return {line["name"]: line for line in json_lines(output(self.command, self.environment))}


def peer_hashes(*names: str) -> dict[str, str]:
    """The SHA-256 of files in bench/peers, which results record."""
    return {name: sha256(PEERS / name) for name in names}


def peers_sentence(hashes: dict[str, str]) -> str:
    """The peer programs of a result, for its page."""
    def named(name: str, digest: str) -> str:
        """A file with its hash, and a remark if the file does not exist any more."""
        absent = "" if (PEERS / name).is_file() else " (an earlier peer that is not in this repository)"
        return f"`{name}` {digest[:12]}{absent}"

    return ("Peer programs, with the first digits of their SHA-256: "
            f"{', '.join(named(name, digest) for name, digest in hashes.items())}.")


Times = dict[str, dict[str, list[float]]]
"""Milliseconds by program and workload, one value per round."""


def run_rounds(programs: Sequence[Program], rounds: int) -> tuple[Times, Times]:
    """Runs every program once per round, and returns the medians and the minima that it printed.

    Every second round runs the programs in the opposite order, so that a machine that becomes slower or faster over
    time affects all of them in the same way.
    """
    medians: Times = {program.name: {} for program in programs}
    minima: Times = {program.name: {} for program in programs}
    for number in range(rounds):
        for program in programs if number % 2 == 0 else reversed(programs):
            progress(f"round {number + 1} of {rounds}: {program.name}")
            for workload, line in program.run().items():
                medians[program.name].setdefault(workload, []).append(line["ms"])
                minima[program.name].setdefault(workload, []).append(line["min_ms"])
    return medians, minima


def medians_of(times: Times) -> dict[str, dict[str, float]]:
    """The median over the rounds, by program and workload."""
    return {
        program: {workload: statistics.median(values) for workload, values in workloads.items()}
        for program, workloads in times.items()
    }


def spread(times: Times) -> float:
    """The largest relative difference between two rounds of one program and workload."""
    return max(max(values) / min(values) - 1 for workloads in times.values() for values in workloads.values())
