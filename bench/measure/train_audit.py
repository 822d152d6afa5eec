#!/usr/bin/env python3
"""Train the network of `trueshot audit` on collections with simulated label noise, and write it as a safetensors file.

    python bench/measure/train_audit.py cifar.safetensors mini.safetensors tiny.safetensors --out audit.safetensors
    cargo build --release

Each argument is an embeddings file with right labels (`trueshot embed`). The training data are collections:

  - A collection has 2 to 50 classes with 3 to 280 items each, drawn from one file, in half of the cases from similar classes.
  - 2 to 42 % of its labels are made wrong: symmetric, paired or dependent on the class (then up to 60 % of a class), or its
    items are replaced by items of other classes or of other files. 7 % of the collections have no wrong labels.
  - Some collections are projected to fewer dimensions or have noise added, and some are random clusters, so that the network
    does not learn one kind of embedding.

An audit works in rounds (crates/core/src/audit/evidence.rs), and every round has its own network. The inputs of a network are
computed from the class probabilities of the round before, and its parameters start as those of the network of the round
before. It is trained by cross-entropy of the true class. Prints the loss on held-out collections, a tenth of all, after every
round. Needs torch and numpy.
"""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
import audit_evidence  # noqa: E402
from audit_evidence import Bank, Collection, Drawn  # noqa: E402

if "--help" not in sys.argv and "-h" not in sys.argv:
    # --help works without packages.
    benchlib.require("numpy", "torch")
    import numpy as np
    import torch
    from torch.nn import functional

# How often collections have each type of noise (see `audit_evidence.draw`); the others have none.
NOISES = {"symmetric": 0.22, "paired": 0.15, "dependent": 0.13, "outlier": 0.23, "foreign": 0.20}
# Collections per training step, and passes over all of them per round.
PER_STEP, EPOCHS = 8, 12
# Collections of up to MOST_ITEMS_WITH_TWIN items have a twin, the same collection without one item. The loss also contains
# the mean squared change of P(wrong) between the two, times STABILITY, so that an audit does not depend on single items.
MOST_ITEMS_WITH_TWIN, STABILITY = 200, 4.0


def random_clusters(rng) -> Bank:
    """60 classes of 140 items around one to four random centres each, with heavy tails and correlated dimensions."""
    dim, classes, items = int(np.exp(rng.uniform(np.log(6), np.log(64)))), 60, 140
    centres_per_class = int(rng.choice([1, 1, 2, 3, 4]))
    centres = rng.normal(size=(classes * centres_per_class, dim)) * rng.uniform(0.6, 2.2) * rng.gamma(1, 1, dim) ** 0.5
    # The items scatter with a t distribution (heavy tails), and `mixing` correlates the dimensions.
    mixing = rng.normal(size=(dim, dim)) / np.sqrt(dim) * 0.7 + 0.6 * np.eye(dim)
    # The centre of every item.
    chosen = np.arange(classes * items) // items * centres_per_class + rng.integers(0, centres_per_class, classes * items)
    rows = centres[chosen] + rng.standard_t(5, (classes * items, dim)) @ mixing
    return Bank.of("clusters", rows, np.repeat(np.arange(classes), items))


def disturbed(rng, rows: np.ndarray) -> np.ndarray:
    """The rows, or rows with the same structure: randomly projected to fewer dimensions, reduced to their principal
    components, or with noise. Each of the three has a probability of 12 %. The first two are only for rows of over 300
    values; for shorter ones, noise has their probability, too."""
    choice, dim = rng.uniform(), rows.shape[1]
    if choice < 0.12 and dim > 300:
        return rows @ rng.normal(size=(dim, int(np.exp(rng.uniform(np.log(12), np.log(256))))))
    if choice < 0.24 and dim > 300 and len(rows) > 12:
        rows = rows - rows.mean(0)
        kept = min(int(np.exp(rng.uniform(np.log(8), np.log(128)))), len(rows) - 1)
        # Principal components from the inner products of the rows, largest first.
        values, vectors = torch.linalg.eigh(torch.from_numpy(rows @ rows.T).double())
        rows = (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :kept].float().numpy()
        return rows / np.maximum(rows.std(0), 1e-6) if rng.uniform() < 0.5 else rows
    if choice < 0.36:
        return rows + rng.uniform() * rows.std() * rng.normal(size=rows.shape)
    return rows


def foreign_bank(rng, bank: Bank, banks: list[Bank]) -> Bank:
    """A bank of items of another domain than `bank`: of another file, with permuted dimensions, or nearly equal to each
    other."""
    partners = [other for other in banks if other is not bank and other.rows.shape[1] == bank.rows.shape[1]]
    source = partners[rng.integers(len(partners))] if partners else bank
    chosen = rng.permutation(len(source.classes))[: int(rng.integers(1, 12))]
    classes = [source.rows[source.classes[number][:120]] for number in chosen]
    choice = rng.uniform()
    if not partners or choice < 0.2:
        order = rng.permutation(bank.rows.shape[1])
        classes = [rows[:, order] for rows in classes]
    if choice > 0.8:
        spread = 0.1 * rng.uniform() * source.rows.std()
        classes = [rows[:1] + spread * rng.normal(size=(60, rows.shape[1])) for rows in classes[:3]]
    return Bank.of("foreign", np.concatenate(classes), np.repeat(np.arange(len(classes)), [len(rows) for rows in classes]))


def draw_task(rng, banks: list[Bank]) -> dict:
    """Draws a random collection, and returns it as a task (see `new_task`), if it is small also with its `twin`, a task
    without the item `left_out`.

    The text at the top of this file summarises the distributions of sizes, noise and banks.
    """
    clusters = rng.uniform() < 0.18
    # Files with more classes are used more often.
    odds = np.sqrt([len(bank.classes) for bank in banks])
    bank = random_clusters(rng) if clusters else banks[rng.choice(len(banks), p=odds / odds.sum())]
    foreign = foreign_bank(rng, bank, banks)
    # Sizes are drawn until the collection has between 6 items and `most`; a few collections are larger than the others.
    classes, items = 0, 0
    most = 2400 if rng.uniform() < 0.06 else 900
    while not 6 <= classes * items <= most:
        classes = int(rng.choice([2, 3, 4, 5, 8, 10, 15, 20, 30, 50]))
        items = int(np.exp(rng.uniform(np.log(3), np.log(130))))
        if rng.uniform() < 0.04:
            classes, items, most = int(rng.integers(2, 6)), 280, 1500
    noise = rng.choice([*NOISES, "none"], p=[*NOISES.values(), 1 - sum(NOISES.values())])
    level = 0 if noise == "none" else rng.uniform(0.02, 0.42)
    kind = "symmetric" if noise == "none" else noise
    settings = dict(ragged=rng.uniform() < 0.4, similar=rng.uniform() < 0.5, foreign=foreign)
    drawn: Drawn = audit_evidence.draw(rng, bank, classes, items, kind, level, **settings)
    rows, everything = disturbed(rng, drawn.rows), np.arange(len(drawn.given))
    task = new_task(rows, drawn, everything)
    if len(rows) <= MOST_ITEMS_WITH_TWIN:
        task["left_out"] = int(rng.integers(len(rows)))
        task["twin"] = new_task(rows, drawn, np.delete(everything, task["left_out"]))
    return task


def new_task(rows: np.ndarray, drawn: Drawn, chosen: np.ndarray) -> dict:
    """The items `chosen` of a collection as a task, a dictionary with what training needs:

    - `rows` `[items, dim]`, centred and of unit length (stored as f16), and their norms before that, `lengths`
    - `given` and `truth`, the given and the true class of every item
    - `shares` `[items, classes]`, the class probabilities that the next round starts from; before the first round they are 1
      for the given class
    """
    given, truth = torch.from_numpy(drawn.given[chosen]), torch.from_numpy(drawn.truth[chosen])
    unit, lengths = audit_evidence.centred(torch.from_numpy(rows[chosen].astype(np.float32)), given)
    shares = functional.one_hot(given, drawn.classes).float()
    return {"rows": unit.half(), "lengths": lengths, "given": given, "truth": truth, "shares": shares}


def with_twins(tasks: list[dict]):
    """All tasks and their twins."""
    for task in tasks:
        yield task
        if "twin" in task:
            yield task["twin"]


def add_features(task: dict) -> None:
    """Adds to a task the `candidates` and `features` for its current `shares`, and `target` `[items]`, the index of the true
    class among the candidates; the number of candidates stands for none of them."""
    unit = functional.normalize(task["rows"].float(), eps=1e-9)
    task["candidates"], task["features"] = audit_evidence.evidence(
        Collection(unit, task["lengths"]), task["shares"], task["given"])  # fmt: skip
    right = task["candidates"] == task["truth"][:, None]
    task["target"] = torch.where(right.any(1), right.float().argmax(1), right.shape[1])


def train_round(rng, tasks: list[dict], held_out: list[dict], before) -> tuple:
    """Trains the network of one round, starting from `before`, that of the round before, if there is one. Returns the network
    and its mean loss on the held-out tasks."""
    scorer = audit_evidence.new_scorer()
    if before is not None:
        scorer.load_state_dict(before.state_dict())
    steps = EPOCHS * len(tasks) // PER_STEP
    optimiser = torch.optim.AdamW(scorer.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def loss(task: dict, stability: float = 0):
        """The cross-entropy of a task, plus the mean squared change of P(wrong) between it and its twin times
        `stability`."""
        scores = scorer(task["features"])
        result = functional.cross_entropy(scores, task["target"])
        if stability and "twin" in task:
            others = torch.arange(len(scores)) != task["left_out"]
            # Candidate 0 is the given class, so this is the change of 1 - P(wrong).
            change = scores.softmax(1)[others, 0] - scorer(task["twin"]["features"]).softmax(1)[:, 0]
            result = result + stability * (change**2).mean()
        return result

    for _ in range(steps):
        optimiser.zero_grad()
        drawn = [tasks[number] for number in rng.integers(0, len(tasks), PER_STEP)]
        (sum(loss(task, STABILITY) for task in drawn) / PER_STEP).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return scorer, float(np.mean([loss(task).item() for task in held_out]))


def save(scorers: list, path: Path) -> None:
    """Writes the networks with the names that crates/core/src/audit/scorer.rs reads, such as
    `round0.class.2.weight`."""
    tensors = {}
    for number, scorer in enumerate(scorers):
        for name, network in (("class", scorer.of_class), ("none", scorer.of_none)):
            for layer, linear in enumerate((network[0], network[2], network[4])):
                tensors[f"round{number}.{name}.{layer}.weight"] = linear.weight
                tensors[f"round{number}.{name}.{layer}.bias"] = linear.bias
    header, offset, data = {}, 0, []
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(values)]}
        offset += len(values)
        data.append(values)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def write_example(scorers: list, path: Path) -> None:
    """Writes a small collection with the probabilities of all classes for every item, for a test of the Rust code."""
    rng = np.random.default_rng(11)
    drawn = audit_evidence.draw(rng, random_clusters(rng), 12, 6, "symmetric", 0.25, ragged=True)
    rows = drawn.rows.round(3)
    task = new_task(rows, drawn, np.arange(len(rows)))
    with torch.no_grad():
        unit, lengths = audit_evidence.centred(torch.from_numpy(rows), task["given"])
        collection = Collection(unit, lengths)
        for scorer in scorers:
            candidates, features = audit_evidence.evidence(collection, task["shares"], task["given"])
            task["shares"] = audit_evidence.spread(candidates, scorer(features).softmax(1), drawn.classes)
    shares = [[round(share, 6) for share in of_item] for of_item in task["shares"].tolist()]
    example = {"rows": rows.astype(float).round(3).tolist(), "given": drawn.given.tolist(), "shares": shares}
    path.write_text(json.dumps(example, separators=(",", ":")).replace("],", "],\n") + "\n")


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE", help="embeddings to draw from")
    parser.add_argument("--tasks", type=benchlib.positive, default=7000, metavar="N",
                        help="collections to draw; a tenth is held out [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed [default: %(default)s]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="write the networks to FILE, such as crates/core/assets/audit.safetensors")
    parser.add_argument("--example", type=Path, metavar="FILE",
                        help="also write a collection with its probabilities to FILE, for the test of the Rust code "
                             "(crates/core/tests/audit/example.json)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    rng, start = np.random.default_rng(arguments.seed), time.monotonic()
    banks = [Bank.of(path.stem, *benchlib.read_embeddings(path)[:2]) for path in arguments.banks]
    tasks = [draw_task(rng, banks) for _ in range(arguments.tasks)]
    held_out, tasks = tasks[: len(tasks) // 10], tasks[len(tasks) // 10 :]
    scorers: list = []
    for number in range(audit_evidence.ROUNDS):
        for task in with_twins([*held_out, *tasks]):
            add_features(task)
        scorer, loss = train_round(rng, tasks, held_out, scorers[-1] if scorers else None)
        print(f"round {number}: loss {loss:.4f} on held-out collections ({time.monotonic() - start:.0f} s)", flush=True)
        scorers.append(scorer)
        with torch.no_grad():
            for task in with_twins([*held_out, *tasks]):
                probabilities = scorer(task["features"]).softmax(1)
                task["shares"] = audit_evidence.spread(task["candidates"], probabilities, task["shares"].shape[1])
    save(scorers, arguments.out)
    if arguments.example:
        write_example(scorers, arguments.example)


if __name__ == "__main__":
    main()
