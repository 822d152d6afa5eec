#!/usr/bin/env python3
"""Stress test of training: two processes on one output, and SIGKILL at random moments.

    python bench/measure/stress_training.py --rounds 200

Every round of every kind works in a folder of its own, with a training small enough for a fraction of a second:

  together  two trainings with different seeds are started at once on one output, either fresh, with --overwrite over
            a finished model, or with --resume on an unfinished run. One runs; the other exits with 1 and names the
            process that holds the output. All files are those of one run. Where the second starts only after the
            first has ended, it must find the finished model instead.
  killed    a training is killed (SIGKILL) once to three times at random moments and resumed each time. It ends in the
            bytes of a run without a break, and no line of metrics that was on disk is lost.
  holder    a training is killed while another waits to be told that the output is taken. The lock of the killed one
            must not stand in the way: the same command with --resume finishes the run.

Prints one line per kind with counts; exits with 1 if anything was wrong. Python's standard library is enough.
"""
import collections, json, os, pathlib, random, re, shutil, signal, struct, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Options of a training of a fraction of a second, which saves a checkpoint after every step (--save-every 0).
STEPS = 60
SMALL = """--layers 1 --width 16 --heads 2 --feed-forward 16 --per-step 4 --ways 3 --shots 5 --queries 5 --val-queries 5
    --val-every 10 --val-episodes 10 --record-every 3 --save-every 0 --threads 1""".split()
# The files of a finished run, and the states of the output in which two runs start together.
NAMES = ["m.safetensors", "m.toml", "m.metrics.jsonl", "m.curves.svg"]
MODES = ["fresh", "overwrite", "resume"]


def write_bank(path, name, seed, classes, items=30, dim=16):
    """Writes an embeddings file with one cluster of rows per class."""
    draw = random.Random(seed)
    values, labels = [], []
    for row in range(classes * items):
        values += [(1.5 if column % classes == row // items else 0.0) + draw.uniform(-2, 2) for column in range(dim)]
        labels.append(row // items)
    features, numbers = struct.pack(f"<{len(values)}f", *values), struct.pack(f"<{len(labels)}q", *labels)
    ends = [len(numbers), len(numbers) + len(features)]
    header = json.dumps({
        "__metadata__": {"classes": json.dumps([f"{name} {place}" for place in range(classes)])},
        "labels": {"dtype": "I64", "shape": [len(labels)], "data_offsets": [0, ends[0]]},
        "features": {"dtype": "F32", "shape": [len(labels), dim], "data_offsets": ends},
    }).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + numbers + features)


class Wrong(Exception):
    """A failed check of a round."""


def expect(is_true, what):
    """Fails the round with this message if the check is false."""
    if not is_true:
        raise Wrong(what)


class Rounds:
    """Runs the rounds and counts their outcomes. A method is one round of the kind of its name, in the folder `place`.

    `whole` has the files of an undisturbed run for each of the seeds 1 and 2, and `seconds` is how long such a run
    takes.
    """

    def __init__(self, binary, folder, draw):
        self.binary, self.folder, self.draw = binary, folder, draw
        self.counts = collections.Counter()
        write_bank(folder / "data.safetensors", "class", 0, 8)
        write_bank(folder / "val.safetensors", "unseen", 7, 6)
        self.whole = {}
        for seed in (1, 2):
            began = time.monotonic()
            place = folder / f"whole-{seed}"
            place.mkdir()
            done = self.start(place, seed)
            _, said = done.communicate()
            expect(done.returncode == 0, f"an undisturbed training failed: {said}")
            self.whole[seed] = contents(place)
            expect(set(self.whole[seed]) == set(NAMES), f"an undisturbed training left {sorted(self.whole[seed])}")
            self.seconds = time.monotonic() - began

    def start(self, place, seed, *more):
        """Starts a training in `place`, with more options."""
        command = [self.binary, "train", "tranfs", "../data.safetensors", "--val", "../val.safetensors",
                   "-o", "m.safetensors", "--steps", str(STEPS), "--seed", str(seed), *SMALL, *more]
        return subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def moment(self):
        """Sleeps until a random moment of a run."""
        time.sleep(self.draw.uniform(0, 1.05 * self.seconds))

    def unfinished(self, place, seed):
        """Starts a run and kills it as soon as there is a checkpoint."""
        run = self.start(place, seed)
        while not (place / "m.checkpoint").exists() and run.poll() is None:
            time.sleep(0.001)
        kill(run)

    def together(self, place):
        """Two trainings on one output."""
        mode = self.draw.choice(MODES)
        seeds = {"first": 1, "second": 1 if mode == "resume" else 2}
        if mode == "overwrite":
            done = self.start(place, 1)
            done.communicate()
        if mode == "resume":
            self.unfinished(place, 1)
        more = [] if mode == "fresh" else ["--" + mode]
        pause = self.draw.choice([0, 0, self.draw.uniform(0, 1.2 * self.seconds)])
        first = self.start(place, seeds["first"], *more)
        time.sleep(pause)
        second = self.start(place, seeds["second"], *more)
        runs = {"first": first, "second": second}
        said = {name: run.communicate()[1] for name, run in runs.items()}
        codes = {name: run.returncode for name, run in runs.items()}
        expect(set(codes.values()) <= {0, 1}, f"exit codes {codes}: {said}")
        winners = [name for name in runs if codes[name] == 0]
        for loser in set(runs) - set(winners):
            other = runs["second" if loser == "first" else "first"].pid
            self.counts[refusal_reason(said[loser], other)] += 1
        expect(winners, f"neither of two trainings ran: {said}")
        if len(winners) == 2:
            # Both ran: one after the other, and the second found a finished model.
            expect(mode != "fresh", f"both of two fresh trainings ran: {said}")
            self.counts["one after the other"] += 1
            expect(any(contents_match(place, self.whole[seeds[name]]) for name in winners), "files of no single run")
        else:
            same(place, self.whole[seeds[winners[0]]])
        self.counts[f"{mode}"] += 1

    def killed(self, place):
        """A training that is killed and resumed."""
        kept = []
        for attempt in range(self.draw.randint(1, 3)):
            run = self.start(place, 1, *(["--resume"] if attempt else []))
            self.moment()
            kill(run)
            said = run.communicate()[1]
            expect(run.returncode in (0, -signal.SIGKILL), f"exit code {run.returncode}: {said}")
            self.counts["finished before it was killed" if run.returncode == 0 else "killed"] += 1
            if (place / "m.metrics.jsonl").exists():
                lines = without_times((place / "m.metrics.jsonl").read_bytes())
                expect(lines[:len(kept)] == kept, "lines of metrics were lost")
                kept = lines
        has_checkpoint = (place / "m.checkpoint").exists()
        last = self.start(place, 1, "--resume")
        said = last.communicate()[1]
        expect(last.returncode == 0, f"resuming failed with {last.returncode}: {said}")
        expect("resuming after step" in said or not has_checkpoint or not kept, f"it did not go on: {said}")
        same(place, self.whole[1])

    def holder(self, place):
        """A training that is killed while another one asks for its output."""
        first = self.start(place, 1)
        while not (place / "m.checkpoint").exists() and first.poll() is None:
            time.sleep(0.001)
        second = self.start(place, 2)
        self.moment()
        kill(first)
        first.communicate()
        said = second.communicate()[1]
        expect(second.returncode == 1, f"exit code {second.returncode} beside a run: {said}")
        self.counts[refusal_reason(said, first.pid)] += 1
        expect(not (place / "m.checkpoint").exists() or first.returncode == -signal.SIGKILL, "a checkpoint was left")
        last = self.start(place, 1, "--resume")
        said = last.communicate()[1]
        expect(last.returncode == 0, f"after the holder was killed: exit code {last.returncode}: {said}")
        same(place, self.whole[1])


def kill(run):
    """Kills a process that this script started. It then holds no lock."""
    if run.poll() is None:
        run.send_signal(signal.SIGKILL)
    run.wait()


def refusal_reason(said, other):
    """The reason for which a training was refused. Fails unless it names the process that holds the output."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    expect(len(errors) == 1, f"a refused training said: {said}")
    if "already exists" in errors[0]:
        return "refused: an earlier run is there"
    expect(re.search(rf"\b{other}\b", errors[0]), f"process {other} is not named: {errors[0]}")
    return "refused: another process trains"


def without_times(metrics):
    """The lines of a metrics file up to the elapsed seconds, which differ between runs."""
    return [line.split(b',"seconds"')[0] for line in metrics.splitlines()]


def contents(place):
    """All files except temporary ones that a killed process could not remove."""
    files = {path.name: path.read_bytes() for path in place.iterdir() if not path.name.endswith(".part")}
    if "m.metrics.jsonl" in files:
        files["m.metrics.jsonl"] = without_times(files["m.metrics.jsonl"])
    return files


def contents_match(place, expected):
    return contents(place) == expected


def same(place, expected):
    """Fails unless the files are those expected, byte for byte."""
    found = contents(place)
    expect(set(found) == set(expected), f"files are {sorted(found)} instead of {sorted(expected)}")
    for name in expected:
        expect(found[name] == expected[name], f"{name} differs from that of an undisturbed run")


def main():
    parser = benchlib.new_parser(__doc__)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=200, help="rounds of every kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--keep", type=pathlib.Path, help="copy the folders of rounds that went wrong there")
    options = parser.parse_args()
    binary, failures = str(pathlib.Path(options.trueshot).resolve()), 0
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(binary, pathlib.Path(folder), random.Random(options.seed))
        for kind in ("together", "killed", "holder"):
            rounds.counts.clear()
            began, wrong, parts = time.monotonic(), 0, 0
            for number in range(options.rounds):
                place = pathlib.Path(folder) / f"{kind}-{number}"
                place.mkdir()
                try:
                    getattr(rounds, kind)(place)
                except Wrong as problem:
                    wrong += 1
                    print(f"{kind}, round {number}: {problem}", file=sys.stderr)
                    if options.keep:
                        shutil.copytree(place, options.keep / place.name)
                parts += sum(path.name.endswith(".part") for path in place.iterdir())
                shutil.rmtree(place)
            details = ", ".join(f"{what} {count}" for what, count in sorted(rounds.counts.items()))
            print(f"{kind}: {options.rounds} rounds, {wrong} wrong; {details}; {parts} temporary files left by killed "
                  f"processes; {time.monotonic() - began:.0f} s", flush=True)
            failures += wrong
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
