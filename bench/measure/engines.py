#!/usr/bin/env python3
"""Audit many tasks in Parquet files with one Python process, Ray Data and Spark on the same cores.

    python bench/measure/engines.py --make TASKS                    # 20,000 tasks of 5 x 5 x 1280, 2.6 GB
    python bench/measure/engines.py TASKS --out docs/results/engines.md

Every run is a separate process that starts its engine, gives it a small job so that its workers exist, and then measures
reading, auditing and collecting the answers. The engines run in turns; times are medians over the rounds. The memory of
the process and of all processes it started is sampled meanwhile, and the largest of all rounds is shown: anonymous memory
is what a process allocated for itself, shared memory is Ray's object store. The answers of all engines must be equal.

The interpreter that runs this script needs the package trueshot and tests/python/engines/requirements.txt; Spark needs
Java 17. Takes about ten minutes, and 2.6 GB of disk for the tasks.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# A task: classes, rows per class, dimensions, and labels that are replaced by random ones (one in five stays right).
WAYS, SHOTS, DIM, REPLACED = 5, 5, 1280, 5
TASKS_PER_FILE = 500
# The interval in which memory and processor time are sampled.
POLL_SECONDS = 0.25
ENGINES = ("python", "ray", "spark")
PACKAGES = {"python": {"pyarrow", "trueshot"}, "ray": {"pyarrow", "ray", "trueshot"}, "spark": {"pyspark", "trueshot"}}
REQUIREMENTS = benchlib.ROOT / "tests" / "python" / "engines" / "requirements.txt"


def make(folder: Path, tasks: int, seed: int) -> None:
    """Writes tasks: rows around class means, after a ReLU; a fifth of the labels are replaced at random."""
    benchlib.require("numpy", "pyarrow", requirements=REQUIREMENTS)
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True, exist_ok=True)
    truth = np.repeat(np.arange(WAYS), SHOTS)
    names = np.array([f"class {number}" for number in range(WAYS)])
    for start in range(0, tasks, TASKS_PER_FILE):
        count = min(TASKS_PER_FILE, tasks - start)
        rng = np.random.default_rng([seed, start])
        rows = rng.standard_normal((count, WAYS * SHOTS, DIM), dtype=np.float32)
        rows += 0.5 * rng.standard_normal((count, WAYS, DIM), dtype=np.float32)[:, truth]
        np.maximum(rows, 0, out=rows)
        given = np.tile(truth, (count, 1))
        for task in given:
            task[rng.permutation(len(task))[:REPLACED]] = rng.integers(WAYS, size=REPLACED)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(truth))
        features = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIM)
        table = pa.table({
            "task": pa.array(range(start, start + count), pa.int64()),
            "features": pa.ListArray.from_arrays(offsets, features),
            "labels": pa.ListArray.from_arrays(offsets, pa.array(names[given.reshape(-1)])),
        })
        path = folder / f"tasks-{start:08}.parquet"
        # Random features cannot be compressed.
        parquet.write_table(table, path, compression="none", use_dictionary=["labels.list.element"], row_group_size=250)


def digest(answers) -> str:
    """A hash of the results in the order of their tasks."""
    hashed = hashlib.sha256()
    for column in answers.sort_by("task").columns:
        hashed.update(repr(column.to_pylist()).encode())
    return hashed.hexdigest()


def one_process(folder: str, cores: int):
    """The audit in one process, and a function that stops the engine."""
    import pyarrow as pa
    import pyarrow.dataset

    import trueshot as ts

    def audit():
        """The table of results."""
        # A stream of batches: the next ones are read while the current ones are audited.
        files = pyarrow.dataset.dataset(folder, format="parquet")
        stream = files.scanner(batch_size=250, batch_readahead=4, fragment_readahead=2).to_reader()
        return pa.table(ts.audit_batch(stream, threads=cores))

    ts.audit_batch(pyarrow.dataset.dataset(folder, format="parquet").head(1))
    return audit, lambda: None


def on_ray(folder: str, cores: int):
    """The audit with Ray Data, and a function that stops the engine."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_worker_niceness="0")
    import pyarrow as pa
    import ray

    import trueshot as ts

    ray.init(num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.range(100, override_num_blocks=cores).map_batches(lambda batch: batch).materialize()

    def audit():
        """The table of results."""
        answers = ts.ray.audit(ray.data.read_parquet(folder))
        return pa.concat_tables(ray.get(answers.to_arrow_refs()))

    return audit, ray.shutdown


def on_spark(folder: str, cores: int):
    """The audit with Spark, and a function that stops the engine."""
    import pyspark

    import trueshot as ts

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = pyspark.sql.SparkSession.builder.master(f"local-cluster[{cores},1,2048]")
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.sql.parquet.columnarReaderBatchSize": "64", "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    }  # fmt: skip
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.range(0, 100, 1, cores).mapInArrow(lambda batches: batches, "id long").toArrow()
    return lambda: ts.spark.audit(session.read.parquet(folder)).toArrow(), session.stop


def run_here(engine: str, folder: str, cores: int) -> None:
    """In a separate process: starts an engine, audits, and prints the times as JSON."""
    begin = time.perf_counter()
    audit, stop = {"python": one_process, "ray": on_ray, "spark": on_spark}[engine](folder, cores)
    processors = Processors()
    started, used = time.perf_counter(), processors.seconds()
    answers = audit()
    times = {"start": started - begin, "seconds": time.perf_counter() - started,
             "processor_seconds": processors.seconds() - used}
    errors = len(answers) - answers["error"].null_count
    print(json.dumps({**times, "tasks": len(answers), "errors": errors, "digest": digest(answers)}), flush=True)
    stop()


def process_tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The fields after the name of the program, which is in brackets: state, parent, ..
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree, waiting = [], [root]
    while waiting:
        tree.append(waiting.pop())
        waiting += children.get(tree[-1], [])
    return tree


class Processors(threading.Thread):
    """Polls the processor time of this process and its descendants, including those that have ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ticks: dict[int, int] = {}
        self.start()

    def run(self) -> None:
        """Polls until the process ends; `Thread.start` calls this."""
        while True:
            self.seconds()
            time.sleep(POLL_SECONDS)

    def seconds(self) -> float:
        """Processor seconds so far."""
        for process in process_tree(os.getpid()):
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # User and system time.
            self._ticks[process] = int(fields[11]) + int(fields[12])
        # A copy: the other thread may add processes meanwhile.
        return sum(dict(self._ticks).values()) / os.sysconf("SC_CLK_TCK")


# Parts of command lines of the engines' processes, and what the page calls these processes.
KINDS = [
    ("ray::MapWorker", "an actor"), ("CoarseGrainedExecutorBackend", "an executor (Java)"),
    ("org.apache.spark", "the driver (Java)"), ("pyspark.daemon", "a Python worker"),
]  # fmt: skip


def kind(process: int, root: int) -> str | None:
    """The name of a process on the page; None for small services of an engine."""
    if process == root:
        return "the process itself"
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return None
    return next((name for part, name in KINDS if part in command), None)


def watch(root: int, peaks: dict, done: threading.Event) -> None:
    """Records the peak memory of a process and its descendants in megabytes, until `done` is set."""
    while not done.wait(POLL_SECONDS):
        # Anonymous memory of all processes together. Shared memory is mapped by several of them, so the largest counts.
        all_anonymous, largest_shared = 0.0, 0.0
        for process in process_tree(root):
            memory = benchlib.process_memory(process)
            anonymous, shared = (memory.get(key, 0) / 1e6 for key in ("RssAnon", "RssShmem"))
            all_anonymous, largest_shared = all_anonymous + anonymous, max(largest_shared, shared)
            name = kind(process, root)
            if name:
                peaks[name] = max(peaks.get(name, 0.0), anonymous)
        peaks["all processes"] = max(peaks.get("all processes", 0.0), all_anonymous)
        peaks["shared memory"] = max(peaks.get("shared memory", 0.0), largest_shared)


def run(engine: str, arguments: argparse.Namespace) -> dict:
    """One run in a separate process, with its peak memory."""
    command = [sys.executable, __file__, str(arguments.folder), "--here", engine, "--cores", str(arguments.cores)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks: dict[str, float] = {}
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(process.pid, peaks, done))
    watcher.start()
    try:
        text, messages = process.communicate()
    finally:
        done.set()
        watcher.join()
    if process.returncode:
        benchlib.fail(f"this command failed:\n{' '.join(command)}\n{messages.strip()[-4000:]}")
    return {**benchlib.json_lines(text)[-1], "peak_mb": {name: round(peak) for name, peak in peaks.items() if peak >= 1}}


def summary(runs: list[dict]) -> dict:
    """The figures of one engine: medians of the times and the largest memory over the rounds."""
    seconds = statistics.median(run["seconds"] for run in runs)
    names = {name for run in runs for name in run["peak_mb"]}
    return {
        "tasks": runs[0]["tasks"],
        "errors": runs[0]["errors"],
        "start_seconds": round(statistics.median(run["start"] for run in runs), 2),
        "seconds": round(seconds, 2),
        "processor_seconds": round(statistics.median(run["processor_seconds"] for run in runs), 2),
        "tasks_per_second": round(runs[0]["tasks"] / seconds, 1),
        "peak_mb": {name: max(run["peak_mb"].get(name, 0) for run in runs) for name in sorted(names)},
        "runs": runs,
    }


TITLES = {"python": "one Python process", "ray": "Ray Data", "spark": "Spark"}
# The largest time that is acceptable, as a multiple of the time of one process: the column "target, at most".
MAX_RATIOS = {"python": "", "ray": "2", "spark": "3"}


def page(result: dict) -> str:
    """The Markdown page."""
    engines, cores = result["engines"], result["cores"]
    base, base_processor = engines["python"]["seconds"], engines["python"]["processor_seconds"]
    times = [
        [TITLES[name], f"{figures['seconds']:.1f}", f"{figures['tasks_per_second']:,.0f}",
         f"{figures['tasks_per_second'] / cores:,.0f}", f"{figures['seconds'] / base:.2f}", MAX_RATIOS[name],
         f"{figures['processor_seconds']:.1f}",
         f"{figures['processor_seconds'] / base_processor:.2f}", f"{figures['start_seconds']:.1f}"]
        for name, figures in engines.items()
    ]  # fmt: skip
    peaks = [
        [TITLES[name], process, f"{megabytes:,}"]
        for name, figures in engines.items() for process, megabytes in figures["peak_mb"].items()
    ]  # fmt: skip
    rounds = [
        [TITLES[name], *(f"{run['seconds']:.1f}" for run in found["runs"]),
         *(f"{run['seconds'] / one['seconds']:.2f}" for run, one in zip(found["runs"], engines["python"]["runs"]))]
        for name, found in engines.items()
    ]  # fmt: skip
    numbers = range(1, result["rounds"] + 1)
    by_round = ["", *(f"round {number}, s" for number in numbers),
                *(f"seconds / one process, round {number}" for number in numbers)]
    head = ["", "seconds", "tasks/s", "tasks/s per core", "seconds / one process", "target, at most", "processor seconds",
            "processor seconds / one process", "start, s"]
    return benchlib.wrapped(f"""# Ray and Spark

{result['tasks']:,} tasks of {WAYS} x {SHOTS} x {DIM} values in f32, {result['megabytes']:,} MB of Parquet in {result['files']} files, audited on
{cores} cores. One process: `audit_batch` with {cores} threads on a stream of the files. Ray:
`trueshot.ray.audit` with up to {cores} actors of one thread. Spark: `trueshot.spark.audit` on {cores} executors of
one core. Reading and collecting the answers are included, the start of the engine is not. Processor
seconds are those of all processes; other work on the machine hardly changes them. The answers of all
engines are equal, byte for byte.

{benchlib.table(head, times)}

Round by round:

{benchlib.table(by_round, rounds)}

Peak memory that the processes allocated, in MB; shared memory is Ray's object store.

{benchlib.table(["", "process", "MB"], peaks, left=2)}

```sh
python bench/measure/engines.py --make TASKS --tasks {result['tasks']}
python bench/measure/engines.py TASKS --cores {cores} --rounds {result['rounds']} --out docs/results/engines.md
```

{result['rounds']} rounds, the engines in turns; times are medians, memory is the largest of all rounds and includes
the start of the engine.

{benchlib.machine_sentence(result['machine'], result['versions'], cores)}
""")


def measure(arguments: argparse.Namespace) -> None:
    """Runs all engines in turns and writes the page."""
    files = sorted(arguments.folder.glob("*.parquet"))
    if not files:
        benchlib.fail(f"no Parquet files in {arguments.folder}; make them with --make {arguments.folder}")
    machine = benchlib.describe_machine()
    # Reads the files into the page cache, so that the first round is like the others.
    for path in files:
        path.read_bytes()
    runs: dict[str, list[dict]] = {engine: [] for engine in arguments.engines}
    for number in range(arguments.rounds):
        for engine in arguments.engines:
            result = run(engine, arguments)
            runs[engine].append({**result, "load_average": round(os.getloadavg()[0], 2)})
            benchlib.progress(f"round {number + 1} of {arguments.rounds}, {engine}: "
                              f"{result['tasks'] / result['seconds']:.0f} tasks/s, {result['seconds']:.1f} s")
    if len(digests := {run["digest"] for of_engine in runs.values() for run in of_engine}) != 1:
        benchlib.fail(f"the answers of the engines differ: {', '.join(sorted(digests))}")
    if failed := sum(run["errors"] for of_engine in runs.values() for run in of_engine):
        benchlib.fail(f"{failed} tasks failed, so the times mean nothing")
    result = {
        "machine": machine,
        "versions": benchlib.package_versions(sys.executable, ["trueshot", "ray", "pyspark", "pyarrow"]),
        "cores": arguments.cores,
        "rounds": arguments.rounds,
        "files": len(files),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6),
        "tasks": runs[arguments.engines[0]][0]["tasks"],
        "engines": {engine: summary(of_engine) for engine, of_engine in runs.items()},
    }
    # Ratios are relative to one process, so there is no page without it.
    text = page(result) if "python" in runs else json.dumps(result["engines"], indent=1)
    benchlib.publish(arguments.out, text, result)


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("folder", type=benchlib.existing_folder, nargs="?", metavar="TASKS",
                        help="folder of Parquet files that --make wrote")
    parser.add_argument("--make", type=Path, metavar="DIR", help="write tasks into DIR and measure nothing")
    parser.add_argument("--tasks", type=benchlib.positive, default=20_000, metavar="N",
                        help="number of tasks for --make [default: %(default)s]")
    benchlib.add_out(parser, "engines.md")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES),
                        help="what to measure [default: all]")
    parser.add_argument("--cores", type=benchlib.positive, default=2, metavar="N", help="[default: %(default)s]")
    parser.add_argument("--rounds", type=benchlib.positive, default=3, metavar="N", help="[default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of --make [default: %(default)s]")
    parser.add_argument("--here", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make is None and arguments.folder is None:
        parser.error("give TASKS to measure, or --make DIR to write tasks")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.make:
        make(arguments.make, arguments.tasks, arguments.seed)
    elif arguments.here:
        run_here(arguments.here, str(arguments.folder), arguments.cores)
    else:
        needed = set().union(*(PACKAGES[engine] for engine in arguments.engines))
        benchlib.require(*sorted(needed), requirements=REQUIREMENTS)
        measure(arguments)


if __name__ == "__main__":
    main()
