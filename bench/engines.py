#!/usr/bin/env python3
"""Audits of many tasks in Parquet files: by one Python process, by Ray Data and by Spark, on the same cores.

    python bench/engines.py --make TASKS                                      # 20,000 tasks of 5 x 5 x 1280, 2.6 GB
    python bench/engines.py TASKS --out docs/results/engines.md

Needs the wheel and what tests/python/engines/requirements.txt names in the interpreter that runs it, and Java 17 for Spark.
Every run is a process of its own that starts its engine, lets it do something small so that workers are there, and then
measures reading, auditing and collecting the answers. The ways take turns, so that whatever else the machine does falls
on all of them; medians over the rounds. Meanwhile the memory of the process and all it started is looked at: *anonymous* is what
a process allocated for itself, shared is Ray's object store. The answers of all ways must be the same bytes.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import machine
import report

WAYS, SHOTS, DIM, WRONG = 5, 5, 1280, 5
TASKS_PER_FILE = 500
POLL_SECONDS = 0.25
ENGINES = ("python", "ray", "spark")


def make(folder: Path, tasks: int, seed: int) -> None:
    """Rows around a mean of their class, behind a ReLU; a fifth of the labels of a task are drawn anew."""
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
            task[rng.permutation(len(task))[:WRONG]] = rng.integers(WAYS, size=WRONG)
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(truth))
        features = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIM)
        table = pa.table({
            "task": pa.array(range(start, start + count), pa.int64()),
            "features": pa.ListArray.from_arrays(ends, features),
            "labels": pa.ListArray.from_arrays(ends, pa.array(names[given.reshape(-1)])),
        })
        path = folder / f"tasks-{start:08}.parquet"
        # Features are noise to a compressor.
        parquet.write_table(table, path, compression="none", use_dictionary=["labels.list.element"], row_group_size=250)


def digest(answers) -> str:
    """A fingerprint of the answers in the order of their tasks."""
    import pyarrow as pa

    hashed = hashlib.sha256()
    for column in answers.sort_by("task").combine_chunks().columns:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        hashed.update(repr(column.to_pylist()).encode())
    return hashed.hexdigest()


def one_process(folder: str, cores: int):
    import pyarrow as pa
    import pyarrow.dataset

    import trueshot as ts

    def audit():
        # A stream of batches: the next ones are read while these are worked on.
        files = pyarrow.dataset.dataset(folder, format="parquet")
        stream = files.scanner(batch_size=250, batch_readahead=4, fragment_readahead=2).to_reader()
        return pa.table(ts.audit_batch(stream, threads=cores))

    ts.audit_batch(pyarrow.dataset.dataset(folder, format="parquet").head(1))
    return audit, lambda: None


def on_ray(folder: str, cores: int):
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_worker_niceness="0")
    import pyarrow as pa
    import ray

    import trueshot as ts

    ray.init(num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.range(100, override_num_blocks=cores).map_batches(lambda batch: batch).materialize()

    def audit():
        answers = ts.ray.audit(ray.data.read_parquet(folder))
        return pa.concat_tables(ray.get(answers.to_arrow_refs()))

    return audit, ray.shutdown


def on_spark(folder: str, cores: int):
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
    """In a process of its own: starts an engine, audits, and says how long it took."""
    begin = time.perf_counter()
    audit, stop = {"python": one_process, "ray": on_ray, "spark": on_spark}[engine](folder, cores)
    processors = Processors()
    started, used = time.perf_counter(), processors.seconds()
    answers = audit()
    said = {"start": started - begin, "seconds": time.perf_counter() - started, "processor_seconds": processors.seconds() - used}
    errors = len(answers) - answers["error"].null_count
    print(json.dumps({**said, "tasks": len(answers), "errors": errors, "digest": digest(answers)}), flush=True)
    stop()


def below(root: int) -> list[int]:
    """A process and all it started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


class Processors(threading.Thread):
    """Adds up what this process and all it started compute, also those that end meanwhile: it looks every quarter of a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ticks: dict[int, int] = {}
        self.start()

    def run(self) -> None:
        while True:
            self.seconds()
            time.sleep(POLL_SECONDS)

    def seconds(self) -> float:
        for process in below(os.getpid()):
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            self._ticks[process] = int(fields[11]) + int(fields[12])
        return sum(dict(self._ticks).values()) / os.sysconf("SC_CLK_TCK")


KINDS = [
    ("ray::MapWorker", "an actor"), ("CoarseGrainedExecutorBackend", "an executor (Java)"), ("org.apache.spark", "driver (Java)"),
    ("pyspark.daemon", "a Python worker"),
]  # fmt: skip


def kind(process: int, root: int) -> str | None:
    """What a process is to a reader; none if it is one of an engine's small services."""
    if process == root:
        return "the process itself"
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return None
    return next((name for part, name in KINDS if part in command), None)


def memory(process: int) -> tuple[float, float]:
    """Megabytes of anonymous and of shared memory in use now."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0, 0.0
    found = dict(re.findall(r"^(RssAnon|RssShmem):\s+(\d+) kB", status, re.M))
    return int(found.get("RssAnon", 0)) / 1e3, int(found.get("RssShmem", 0)) / 1e3


def watch(root: int, peaks: dict, done: threading.Event) -> None:
    while not done.wait(POLL_SECONDS):
        sums = [0.0, 0.0]
        for process in below(root):
            used = memory(process)
            sums = [sums[0] + used[0], max(sums[1], used[1])]
            name = kind(process, root)
            if name:
                peaks[name] = max(peaks.get(name, 0.0), used[0])
        peaks["all processes"] = max(peaks.get("all processes", 0.0), sums[0])
        peaks["shared memory"] = max(peaks.get("shared memory", 0.0), sums[1])


def run(engine: str, arguments: argparse.Namespace) -> dict:
    """One run in a process of its own, with the memory it needed."""
    command = [sys.executable, __file__, str(arguments.tasks_folder), "--here", engine, "--cores", str(arguments.cores)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks: dict[str, float] = {}
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(process.pid, peaks, done))
    watcher.start()
    said, messages = process.communicate()
    done.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{messages[-4000:]}")
    lines = [line for line in said.splitlines() if line.startswith("{")]
    return {**json.loads(lines[-1]), "peak_mb": {name: round(peak) for name, peak in peaks.items() if peak >= 1}}


def summary(runs: list[dict]) -> dict:
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
BARS = {"python": "", "ray": "2", "spark": "3"}


def page(result: dict) -> str:
    engines, cores = result["engines"], result["cores"]
    base, computed = engines["python"]["seconds"], engines["python"]["processor_seconds"]
    times = [
        [TITLES[name], f"{it['seconds']:.1f}", f"{it['tasks_per_second']:,.0f}", f"{it['tasks_per_second'] / cores:,.0f}",
         f"{it['seconds'] / base:.2f}", BARS[name], f"{it['processor_seconds']:.1f}",
         f"{it['processor_seconds'] / computed:.2f}", f"{it['start_seconds']:.1f}"]
        for name, it in engines.items()
    ]  # fmt: skip
    peaks = [
        [TITLES[name], process, f"{megabytes:,}"]
        for name, it in engines.items() for process, megabytes in it["peak_mb"].items()
    ]  # fmt: skip
    rounds = [
        [TITLES[name], *(f"{it['seconds']:.1f}" for it in found["runs"]),
         *(f"{it['seconds'] / one['seconds']:.2f}" for it, one in zip(found["runs"], engines["python"]["runs"]))]
        for name, found in engines.items()
    ]  # fmt: skip
    numbers = range(1, result["rounds"] + 1)
    by_round = ["", *(f"round {number}, s" for number in numbers), *(f"times one process, {number}" for number in numbers)]
    head = ["", "seconds", "tasks a second", "a core", "times one process", "allowed", "processor seconds", "times one process", "start, s"]
    return f"""# Ray and Spark

{result['tasks']:,} tasks of {WAYS} x {SHOTS} x {DIM} numbers in f32, {result['megabytes']:,} MB of Parquet in {result['files']} files, audited
with the built-in head on {cores} cores. One process: `audit_batch` with {cores} threads on a stream of the files. Ray: `trueshot.ray.audit` with
up to {cores} actors of one thread. Spark: `trueshot.spark.audit` on {cores} executors of one core. Reading and collecting the answers are
counted, the start of the engine is not. Processor seconds are those of all processes, which other work on the machine hardly
changes. The answers of all three are the same bytes.

{report.table(head, times)}

Round by round:

{report.table(by_round, rounds)}

What the processes allocated at most, in MB; shared memory is Ray's object store.

{report.table(["", "process", "MB"], peaks, left=2)}

Made with `bench/engines.py`, {result['rounds']} rounds in turns, medians:

```sh
python bench/engines.py --make TASKS --tasks {result['tasks']}
python bench/engines.py TASKS --rounds {result['rounds']} --out docs/results/engines.md
```

{machine.sentence(result['machine'], result['versions'], cores)}
"""


def measure(arguments: argparse.Namespace) -> None:
    place = machine.describe()
    files = sorted(arguments.tasks_folder.glob("*.parquet"))
    for path in files:
        path.read_bytes()
    runs: dict[str, list[dict]] = {engine: [] for engine in arguments.engines}
    for number in range(arguments.rounds):
        for engine in arguments.engines:
            found = run(engine, arguments)
            runs[engine].append({**found, "load_average": round(os.getloadavg()[0], 2)})
            print(f"round {number + 1}, {engine}: {found['tasks'] / found['seconds']:.0f} tasks/s, {found['seconds']:.1f} s", file=sys.stderr)
    digests = {run["digest"] for found in runs.values() for run in found}
    if len(digests) != 1:
        sys.exit(f"the answers differ: {digests}")
    result = {
        "machine": place,
        "versions": machine.versions(sys.executable, ["trueshot", "ray", "pyspark", "pyarrow"]),
        "cores": arguments.cores,
        "rounds": arguments.rounds,
        "files": len(files),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6),
        "tasks": runs[arguments.engines[0]][0]["tasks"],
        "engines": {engine: summary(found) for engine, found in runs.items()},
    }
    if arguments.out:
        report.write(arguments.out, page(result), result)
    print(json.dumps(result["engines"], indent=1) if "python" not in result["engines"] else page(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks_folder", type=Path, nargs="?", metavar="TASKS", help="folder of Parquet files")
    parser.add_argument("--make", type=Path, metavar="DIR", help="writes the tasks there, and that is all")
    parser.add_argument("--tasks", type=int, default=20_000, help="how many to make [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the Markdown page; the JSON file goes beside it")
    parser.add_argument("--here", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make, arguments.tasks, arguments.seed)
    elif arguments.tasks_folder is None:
        parser.error("TASKS or --make is wanted")
    elif arguments.here:
        run_here(arguments.here, str(arguments.tasks_folder), arguments.cores)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
