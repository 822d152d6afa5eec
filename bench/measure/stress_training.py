#!/usr/bin/env python3
"""Stress test of training: two processes on one output, and SIGKILL at random moments.

    python bench/measure/stress_training.py --rounds 200

A training holds a lock on its output from before it reads data until it ends. A training that finds the output locked
does not wait: it is refused with exit code 1. Every round works in a folder of its own, with a training that takes a
fraction of a second. There are three kinds of rounds:

  together  Two trainings on one output. In two thirds of the rounds the second is started at once after the first, in
            the others after a random pause of up to 1.2 times the length of a run, so that the first may have ended.
            The output is empty ("fresh"), a finished model that --overwrite replaces, or an unfinished run that
            --resume continues. While one training runs, the other must be refused with an error that names the process
            of the first. After the first has ended, it depends on the output: fresh, the second is refused because a
            model is there; with --overwrite it trains again; with --resume it accepts the finished model. In the end
            all files must be those of one undisturbed run.
  killed    A training is killed (SIGKILL) at one to three random moments and resumed after each. The final files must
            be those of an undisturbed run, and no line of metrics that was written before a kill may be lost.
  holder    A second training is started on the output of a running one, which is then killed at a random moment. The
            second must be refused. The lock file of the killed training must not block others: the first command with
            --resume must finish the run.

Prints one line per kind with counts; exits with 1 if a check failed. Needs no packages.
"""
from __future__ import annotations

import collections
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Options of a training that takes a fraction of a second. It saves a checkpoint after every step (--save-every 0) and
# adds a line of metrics after every third step (--record-every) and every validation (--val-every).
STEPS = 60
SMALL = """--layers 1 --width 16 --heads 2 --feed-forward 16 --per-step 4 --ways 3 --shots 5 --queries 5 --val-queries 5
    --val-every 10 --val-episodes 10 --record-every 3 --save-every 0 --threads 1""".split()
# The files of a finished run.
FILES = ["m.safetensors", "m.toml", "m.metrics.jsonl", "m.curves.svg"]
# What is at the output when two trainings start: nothing, a finished model (--overwrite), an unfinished run (--resume).
MODES = ["fresh", "overwrite", "resume"]


def write_bank(path: Path, name: str, seed: int, classes: int, items: int = 30, dim: int = 16) -> None:
    """Writes an embeddings file with one cluster of `items` rows per class; the classes are called "NAME 0", "NAME 1", ..."""
    draw = random.Random(seed)
    values: list[float] = []
    labels: list[int] = []
    for row in range(classes * items):
        # Class c is shifted by 1.5 in the columns c, c + classes, ...; the noise is uniform.
        values += [(1.5 if column % classes == row // items else 0.0) + draw.uniform(-2, 2) for column in range(dim)]
        labels.append(row // items)
    tensors = [("labels", "I64", [len(labels)], 8 * len(labels)), ("features", "F32", [len(labels), dim], 4 * len(values))]
    header = benchlib.embeddings_header([f"{name} {label}" for label in range(classes)], {}, tensors)
    data = struct.pack(f"<{len(labels)}q", *labels) + struct.pack(f"<{len(values)}f", *values)
    path.write_bytes(header + data)


class CheckFailed(Exception):
    """A check of a round failed. The round ends, and the other rounds are still run."""


def expect(is_true: object, message: str) -> None:
    """Raises CheckFailed with the message if `is_true` is false or empty."""
    if not is_true:
        raise CheckFailed(message)


class Rounds:
    """Runs single rounds: `together`, `killed` and `holder` run one round of that kind in an empty folder.

    `counts` counts the outcomes, `undisturbed` has the files of an undisturbed run for each of the seeds 1 and 2, and
    `seconds` is how long such a run takes.
    """

    def __init__(self, binary: str, folder: Path, draw: random.Random) -> None:
        self.binary, self.draw = binary, draw
        self.counts: collections.Counter = collections.Counter()
        write_bank(folder / "data.safetensors", "class", 0, 8)
        write_bank(folder / "val.safetensors", "unseen", 7, 6)
        self.undisturbed: dict[int, dict] = {}
        for seed in (1, 2):
            began = time.monotonic()
            run_folder = folder / f"undisturbed-{seed}"
            run_folder.mkdir()
            run = self.start(run_folder, seed)
            _, stderr = run.communicate()
            expect(run.returncode == 0, f"an undisturbed training failed: {stderr}")
            self.undisturbed[seed] = files = contents(run_folder)
            expect(set(files) == set(FILES), f"an undisturbed training left {sorted(files)}")
            self.seconds = time.monotonic() - began

    def start(self, folder: Path, seed: int, *options: str) -> subprocess.Popen:
        """Starts a training in a folder, with more options of `trueshot train`."""
        command = [self.binary, "train", "tranfs", "../data.safetensors", "--val", "../val.safetensors",
                   "-o", "m.safetensors", "--steps", str(STEPS), "--seed", str(seed), *SMALL, *options]
        return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def sleep_for_part_of_a_run(self) -> None:
        """Sleeps for a random time, from nothing to a little longer than a run takes."""
        time.sleep(self.draw.uniform(0, 1.05 * self.seconds))

    def start_and_kill(self, folder: Path, seed: int) -> None:
        """Starts a run and kills it as soon as there is a checkpoint."""
        run = self.start(folder, seed)
        wait_for_checkpoint(folder, run)
        kill(run)

    def together(self, folder: Path) -> None:
        """Two trainings on one output."""
        mode = self.draw.choice(MODES)
        # Other seeds give other files, which shows whose they are. --resume refuses a run with another seed.
        seeds = {"first": 1, "second": 1 if mode == "resume" else 2}
        if mode == "overwrite":
            self.start(folder, 1).communicate()
        if mode == "resume":
            self.start_and_kill(folder, 1)
        options = [] if mode == "fresh" else ["--" + mode]
        # No pause in two thirds of the rounds.
        pause = self.draw.choice([0, 0, self.draw.uniform(0, 1.2 * self.seconds)])
        first = self.start(folder, seeds["first"], *options)
        time.sleep(pause)
        second = self.start(folder, seeds["second"], *options)
        runs = {"first": first, "second": second}
        stderr = {name: run.communicate()[1] for name, run in runs.items()}
        codes = {name: run.returncode for name, run in runs.items()}
        expect(set(codes.values()) <= {0, 1}, f"exit codes {codes}: {stderr}")
        successful = [name for name in runs if codes[name] == 0]
        for refused in set(runs) - set(successful):
            holder = runs["second" if refused == "first" else "first"]
            self.counts[refusal_reason(stderr[refused], holder.pid)] += 1
        expect(successful, f"neither of two trainings ran: {stderr}")
        if len(successful) == 2:
            # One ran after the other. If both were started at once, either may have taken the lock first, so the files
            # may be those of either.
            expect(mode != "fresh", f"both of two fresh trainings ran: {stderr}")
            self.counts["one after the other"] += 1
            is_of_one = any(contents(folder) == self.undisturbed[seeds[name]] for name in successful)
            expect(is_of_one, "the files are not those of one run")
        else:
            expect_contents(folder, self.undisturbed[seeds[successful[0]]])
        self.counts[mode] += 1

    def killed(self, folder: Path) -> None:
        """A training that is killed and resumed, up to three times."""
        # The lines of metrics on disk after the previous kill.
        lines_before: list[bytes] = []
        for attempt in range(self.draw.randint(1, 3)):
            run = self.start(folder, 1, *(["--resume"] if attempt else []))
            self.sleep_for_part_of_a_run()
            kill(run)
            stderr = run.communicate()[1]
            expect(run.returncode in (0, -signal.SIGKILL), f"exit code {run.returncode}: {stderr}")
            self.counts["finished before it was killed" if run.returncode == 0 else "killed"] += 1
            if (folder / "m.metrics.jsonl").exists():
                # A kill never leaves half a line: the file is written under another name and then renamed.
                lines = without_times((folder / "m.metrics.jsonl").read_bytes())
                expect(lines[:len(lines_before)] == lines_before, "lines of metrics were lost")
                lines_before = lines
        has_checkpoint = (folder / "m.checkpoint").exists()
        last = self.start(folder, 1, "--resume")
        stderr = last.communicate()[1]
        expect(last.returncode == 0, f"resuming failed with {last.returncode}: {stderr}")
        # A checkpoint from before the first step is resumed without this message. Once there are lines of metrics, the
        # checkpoint, which is written before them, is of a later step.
        is_past_start = has_checkpoint and lines_before
        expect("resuming after step" in stderr or not is_past_start, f"the run did not resume: {stderr}")
        expect_contents(folder, self.undisturbed[1])

    def holder(self, folder: Path) -> None:
        """A training that is killed at a random moment after another one was started on its output."""
        first = self.start(folder, 1)
        wait_for_checkpoint(folder, first)
        second = self.start(folder, 2)
        self.sleep_for_part_of_a_run()
        kill(first)
        first.communicate()
        # The second is refused even if it starts only after the end of the first, which leaves a checkpoint or a model.
        stderr = second.communicate()[1]
        expect(second.returncode == 1, f"exit code {second.returncode} of a second training: {stderr}")
        self.counts[refusal_reason(stderr, first.pid)] += 1
        was_killed = first.returncode == -signal.SIGKILL
        expect(was_killed or not (folder / "m.checkpoint").exists(), "a finished run left a checkpoint")
        last = self.start(folder, 1, "--resume")
        stderr = last.communicate()[1]
        expect(last.returncode == 0, f"after the holder was killed: exit code {last.returncode}: {stderr}")
        expect_contents(folder, self.undisturbed[1])


def wait_for_checkpoint(folder: Path, run: subprocess.Popen) -> None:
    """Waits until a training has written its first checkpoint, or has ended."""
    while not (folder / "m.checkpoint").exists() and run.poll() is None:
        time.sleep(0.001)


def kill(run: subprocess.Popen) -> None:
    """Kills a process that this script started, and waits for its end, when the system releases its lock."""
    if run.poll() is None:
        run.send_signal(signal.SIGKILL)
    run.wait()


def refusal_reason(stderr: str, holder: int) -> str:
    """Why a training was refused, for the counts: a checkpoint or model exists, or the process `holder` (a process id)
    holds the lock. Fails if the messages in `stderr` are not exactly one error with one of these reasons."""
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    expect(len(errors) == 1, f"a refused training printed {len(errors)} errors instead of 1: {stderr}")
    if "already exists" in errors[0]:
        return "refused because of an earlier run"
    expect(re.search(rf"\b{holder}\b", errors[0]), f"process {holder} is not named: {errors[0]}")
    return "refused because of the lock"


def without_times(metrics: bytes) -> list[bytes]:
    """The lines of a metrics file up to the elapsed seconds, which differ between runs."""
    # "seconds" is the last key of a line.
    return [line.split(b',"seconds"')[0] for line in metrics.splitlines()]


def contents(folder: Path) -> dict[str, bytes | list[bytes]]:
    """The contents of all files by name, metrics as lines without times. Temporary files are left out, because a killed
    process cannot remove them."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".part")}
    if "m.metrics.jsonl" in files:
        files["m.metrics.jsonl"] = without_times(files["m.metrics.jsonl"])
    return files


def expect_contents(folder: Path, expected: dict[str, bytes | list[bytes]]) -> None:
    """Fails unless the files of a folder have the expected `contents`."""
    files = contents(folder)
    expect(set(files) == set(expected), f"files are {sorted(files)} instead of {sorted(expected)}")
    for name in expected:
        expect(files[name] == expected[name], f"{name} differs from that of an undisturbed run")


def main() -> None:
    """Runs the rounds of every kind, and prints counts per kind and the error of every failed round."""
    parser = benchlib.new_parser(__doc__)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=200, metavar="N",
                        help="rounds of every kind [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="seed of the random moments [default: %(default)s]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the folders of failed rounds into this folder")
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as parent:
        rounds = Rounds(str(options.trueshot), Path(parent), random.Random(options.seed))
        for kind in ("together", "killed", "holder"):
            rounds.counts.clear()
            # `parts` counts the temporary files that killed trainings left.
            began, failed, parts = time.monotonic(), 0, 0
            for number in range(options.rounds):
                folder = Path(parent) / f"{kind}-{number}"
                folder.mkdir()
                try:
                    getattr(rounds, kind)(folder)
                except CheckFailed as problem:
                    failed += 1
                    print(f"{kind}, round {number}: {problem}", file=sys.stderr)
                    if options.keep:
                        shutil.copytree(folder, options.keep / folder.name)
                parts += sum(path.name.endswith(".part") for path in folder.iterdir())
                shutil.rmtree(folder)
            details = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(rounds.counts.items()))
            print(f"{kind}: {options.rounds} rounds, {failed} failed; {details}; {parts} temporary files left by "
                  f"killed processes; {time.monotonic() - began:.0f} s", flush=True)
            failures += failed
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
