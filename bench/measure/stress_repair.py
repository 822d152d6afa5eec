#!/usr/bin/env python3
"""Stress test of `trueshot repair`: two processes on one folder, and SIGKILL at random moments.

    python bench/measure/stress_repair.py --rounds 200

Each round builds a folder of 240 files in three classes and a plan that moves 120 of them, runs a scenario, and checks
that every file is there exactly once, with its content, and that the exit codes say what happened. Scenarios:

  undo during in-place   an undo is started while a repair in place is running
  two in-place           two repairs of one folder are started at once
  two copies             two repairs into one new folder are started at once
  kill -9 of in-place    a repair in place is killed
  kill -9 of undo        an undo is killed
  kill -9 of a copy      a repair into a new folder is killed

Prints one line per scenario with counts of how its rounds ended. Exits with 1 if a round failed. Needs no packages. 200
rounds take a few minutes.
"""
from __future__ import annotations

import argparse
import collections
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

CLASSES = ["ant", "bee", "cow"]
FILES_PER_CLASS = 80
# A process is killed at a random moment up to this many seconds after its start.
LONGEST_LIFE = 0.03
# The lock file of a repair, which is not part of the collection.
IGNORED = {".trueshot-lock"}


class Failure(Exception):
    """Ends a round in which a file was lost or duplicated, or an exit code was wrong."""


def build(folder: Path) -> dict[str, bytes]:
    """Writes the collection and its plan; returns the contents of every file by its path in the collection."""
    photos = folder / "photos"
    contents, listing, changes = {}, [], []
    for index, name in enumerate(CLASSES):
        (photos / name).mkdir(parents=True)
        for number in range(FILES_PER_CLASS):
            item = f"{name}/{number}.png"
            data = f"{item} {random.random()}".encode()
            (photos / item).write_bytes(data)
            contents[item] = data
            listing.append({"item": item, "class": name, "size": len(data)})
            if number % 4 == 0:
                changes.append({"item": item, "from": name, "quarantine": True})
            elif number % 4 == 1:
                changes.append({"item": item, "from": name, "to": CLASSES[(index + 1) % len(CLASSES)]})
    header = {
        "format": "trueshot-plan/1",
        "kind": "folder",
        "root": str(photos),
        "items": len(listing),
        "accuracy": 0.5,
        "accuracy_after": 1.0,
    }
    lines = [header, *changes, {"listing": listing}]
    (folder / "plan.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return contents


def read(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, by relative path; without the lock file."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: data for name, data in contents.items() if name not in IGNORED}


def require_all(found: dict[str, bytes], contents: dict[str, bytes], what: str) -> None:
    """Fails unless the files `found` have the original `contents`, each exactly once, under any names. The error calls the
    files `what`."""
    have, want = collections.Counter(found.values()), collections.Counter(contents.values())
    if have != want:
        raise Failure(f"{what}: {sum((want - have).values())} files lost, {sum((have - want).values())} duplicated")


class Round:
    """A round: a folder with a collection and its plan, and the commands that are run on it."""

    def __init__(self, program: str, folder: Path):
        self.program, self.folder = program, folder
        self.contents = build(folder)

    def start(self, *arguments: str) -> subprocess.Popen:
        """Starts `trueshot repair` with these arguments."""
        command = [self.program, "repair", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Runs `trueshot repair`; returns its exit code and its messages."""
        process = self.start(*arguments)
        message = process.communicate()[1]
        return process.returncode, message

    def photos(self) -> dict[str, bytes]:
        """The contents of the collection as it is now."""
        return read(self.folder / "photos")

    def is_original(self) -> bool:
        """Whether all files are where they were before any repair."""
        return self.photos() == self.contents

    def require_undone(self) -> None:
        """Reverts the remaining moves; the folder must then be the original this_round."""
        if (self.folder / "plan.undo.jsonl").exists():
            code, message = self.run("--undo", "plan.undo.jsonl")
            if code != 0:
                raise Failure(f"undo failed: {message}")
        if not self.is_original():
            raise Failure("after undo the folder is not the original one")


def finish(process: subprocess.Popen) -> tuple[int, str]:
    """Waits for a process; returns its exit code and its messages."""
    message = process.communicate(timeout=60)[1]
    return process.returncode, message


def require_refusal(code: int, message: str) -> None:
    """Fails unless the command succeeded, or was refused because another process, which it names, uses the folder."""
    if code not in (0, 1) or (code == 1 and "is in use by process" not in message):
        raise Failure(f"exit {code}: {message}")


# --- Scenarios: each runs one round and returns how it ended, for the counts ---


def undo_during_in_place(this_round: Round) -> str:
    """An undo is started as soon as the repair has written its journal of moves, which the undo reads. The undo is
    refused, or runs after the repair."""
    repair = this_round.start("plan.jsonl", "--in-place")
    while repair.poll() is None and not (this_round.folder / "plan.undo.jsonl").exists():
        time.sleep(0.0002)
    undo = this_round.start("--undo", "plan.undo.jsonl")
    code, message = finish(undo)
    repaired, repair_message = finish(repair)
    if repaired != 0:
        raise Failure(f"repair: exit {repaired}: {repair_message}")
    require_refusal(code, message)
    require_all(this_round.photos(), this_round.contents, "photos")
    if code == 0 and not this_round.is_original():
        raise Failure("undo reported success, but files are not back")
    this_round.require_undone()
    return "refused" if code else "after the repair"


def two_in_place(this_round: Round) -> str:
    """Two repairs of one folder are started at once: one is refused, or runs after the other."""
    results = [finish(process) for process in [this_round.start("plan.jsonl", "--in-place") for _ in range(2)]]
    for code, message in results:
        require_refusal(code, message)
    if all(code != 0 for code, _ in results):
        raise Failure("both were refused")
    require_all(this_round.photos(), this_round.contents, "photos")
    # The plan quarantines every fourth file of each class.
    if len(list((this_round.folder / "photos/_quarantine").rglob("*.png"))) != len(CLASSES) * FILES_PER_CLASS // 4:
        raise Failure("a repair that reported success is incomplete")
    this_round.require_undone()
    return "one refused" if any(code for code, _ in results) else "one after the other"


def two_copies(this_round: Round) -> str:
    """Two repairs into one new folder are started at once: exactly one of them makes it."""
    results = [finish(process) for process in [this_round.start("plan.jsonl", "--into", "clean") for _ in range(2)]]
    for code, message in results:
        if code == 1 and "it already exists" in message:
            continue
        require_refusal(code, message)
    if [code for code, _ in results].count(0) != 1:
        raise Failure(f"exit codes {[code for code, _ in results]}")
    copied = read(this_round.folder / "clean")
    copied.pop("trueshot-repair.jsonl")
    require_all(copied, this_round.contents, "copy")
    if not this_round.is_original():
        raise Failure("the original has changed")
    return "one refused"


def kill_in_place(this_round: Round) -> str:
    """A repair in place is killed."""
    process = this_round.start("plan.jsonl", "--in-place")
    return killed(this_round, process, lambda: this_round.run("plan.jsonl", "--in-place"))


def kill_undo(this_round: Round) -> str:
    """An undo is killed. It removes its journal when it is done."""
    code, message = this_round.run("plan.jsonl", "--in-place")
    if code != 0:
        raise Failure(message)
    process = this_round.start("--undo", "plan.undo.jsonl")

    def again() -> tuple[int, str]:
        """Runs the undo again unless it is done."""
        is_done = not (this_round.folder / "plan.undo.jsonl").exists()
        return (0, "") if is_done else this_round.run("--undo", "plan.undo.jsonl")

    return killed(this_round, process, again)


def killed(this_round: Round, process: subprocess.Popen, again) -> str:
    """Kills the process at a random moment, then half of the time finishes its work with `again()`, and reverts all. Fails
    if a file is lost after any of these steps."""
    time.sleep(random.uniform(0, LONGEST_LIFE))
    process.send_signal(signal.SIGKILL)
    code, _ = finish(process)
    require_no_loss(this_round)
    if random.random() < 0.5:
        code, message = again()
        if code != 0:
            raise Failure(f"the same command again: exit {code}: {message}")
        require_all(this_round.photos(), this_round.contents, "photos")
    this_round.require_undone()
    return "killed" if code == -signal.SIGKILL else "finished"


def require_no_loss(this_round: Round) -> None:
    """Fails if the content of a file is nowhere in the collection. In the middle of a move it may be there twice."""
    missing = set(this_round.contents.values()) - set(this_round.photos().values())
    if missing:
        raise Failure(f"{len(missing)} files lost by the kill")


def kill_copy(this_round: Round) -> str:
    """A repair into a new folder is killed. Either the folder is there and complete, or the same command makes it."""
    process = this_round.start("plan.jsonl", "--into", "clean")
    time.sleep(random.uniform(0, LONGEST_LIFE))
    process.send_signal(signal.SIGKILL)
    code, _ = finish(process)
    if not this_round.is_original():
        raise Failure("the original has changed")
    if code != 0 and not (this_round.folder / "clean").exists():
        second_code, message = this_round.run("plan.jsonl", "--into", "clean")
        if second_code != 0:
            raise Failure(f"the same command again: exit {second_code}: {message}")
    copied = read(this_round.folder / "clean")
    copied.pop("trueshot-repair.jsonl")
    require_all(copied, this_round.contents, "copy")
    left = [path.name for path in this_round.folder.iterdir() if path.name.startswith(".")]
    if code != -signal.SIGKILL and left:
        raise Failure(f"left behind: {left}")
    return "killed" if code == -signal.SIGKILL else "finished"


SCENARIOS = {
    "undo during in-place": undo_during_in_place,
    "two in-place": two_in_place,
    "two copies": two_copies,
    "kill -9 of in-place": kill_in_place,
    "kill -9 of undo": kill_undo,
    "kill -9 of a copy": kill_copy,
}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=200, metavar="N",
                        help="rounds per scenario [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="seed of the random moments [default: %(default)s]")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    random.seed(options.seed)
    failures = 0
    for name, scenario in SCENARIOS.items():
        counts, problems = collections.Counter(), []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    counts[scenario(Round(str(options.trueshot), Path(folder)))] += 1
                except Failure as failure:
                    problems.append(str(failure))
        outcomes = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"{name}: {options.rounds} rounds, {len(problems)} failed ({outcomes})", flush=True)
        for problem in problems[:3]:
            print(f"  {problem}")
        failures += len(problems)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
