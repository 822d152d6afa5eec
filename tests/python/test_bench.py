"""The scripts in bench/: listed in the README, with a help text and a clear error if a package is missing; and their
result pages.

Nothing is measured here. Scripts run without site-packages (`python -S`), so packages are missing on purpose.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))
import benchlib  # noqa: E402

FILES = sorted(path.relative_to(BENCH).as_posix() for path in BENCH.glob("**/*.py"))
SCRIPTS = [name for name in FILES if "__main__" in (BENCH / name).read_text()]
PAGES = [
    *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md"), BENCH / "README.md",
    *BENCH.glob("**/*.py"), *ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("crates/*/examples/*.rs"), ROOT / "test",
]  # fmt: skip


def run(*words, cwd, options=("-S",)):
    command = [sys.executable, *options, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_the_readme_lists_every_file_and_no_other():
    listed = re.findall(r"`((?:measure|peers)/\w+\.py|benchlib\.py)`", (BENCH / "README.md").read_text())
    assert sorted(set(listed)) == FILES
    rows = [line for line in (BENCH / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(FILES) - 1, "one row per file, except benchlib.py"


def test_every_path_below_bench_that_is_named_somewhere_exists():
    named = {
        (path.relative_to(ROOT).as_posix(), name.rstrip("."))
        for path in PAGES
        for name in re.findall(r"(?<![\w/.-])bench/[\w./-]*", path.read_text())
    }
    assert len(named) > 30
    assert [(page, name) for page, name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_explains_a_script_with_an_example_without_any_package(name, tmp_path):
    done = run(BENCH / name, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"    python bench/{name}" in done.stdout
    undocumented = re.findall(r"^  (--?\w[\w-]*(?: [A-Z.,]+)?)$(?!\n {20,}\S)", done.stdout, re.M)
    assert undocumented == [], "every option has a help text"


@pytest.mark.parametrize(
    ("name", "words", "package"),
    [
        ("peers/torch_workloads.py", [], "torch"),
        ("peers/torch_cuda.py", [], "torch"),
        ("peers/torch_accuracy.py", ["."], "torch"),
        ("peers/torch_methods.py", ["--features", __file__], "torch"),
        ("peers/easyfsl_episodes.py", [], "easyfsl"),
        ("peers/easyfsl_methods.py", ["--features", __file__, "--manifest", __file__], "easyfsl"),
        ("peers/cleanlab_scores.py", ["sets.npz"], "cleanlab"),
        ("peers/numpy_limits.py", [], "numpy"),
        ("peers/onnxruntime_embed.py", [".", "--model", __file__], "onnxruntime"),
        ("peers/onnxruntime_features.py", [".", "--model", __file__, "-o", "out"], "pillow"),
        ("measure/make_bank.py", ["-o", "out"], "numpy"),
        ("measure/photos.py", [".", "--trueshot", __file__], "numpy"),
        ("measure/python_package.py", ["--trueshot", __file__], "scikit-learn"),
        ("measure/easyfsl_agreement.py", [], "trueshot"),
        ("measure/engines.py", ["."], "pyspark"),
    ],
)
def test_a_missing_package_is_named_in_one_error_line(name, words, package, tmp_path):
    done = run(BENCH / name, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(rf"error: .* does not have the Python packages? .*\b{package}\b.*\n", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("measure/bank.py", ["no.safetensors"], "there is no file 'no.safetensors'"),
        ("measure/cost.py", ["--features", "no.safetensors"], "there is no file 'no.safetensors'"),
        ("measure/closed_form.py", ["--reference", ".", "--paper", __file__, "--trueshot", __file__], "there is no mini-test-features"),
        ("measure/transductive.py", ["--reference", ".", "--trueshot", __file__], "there is no mini-test-features"),
        ("measure/heads.py", ["--features", ".", "--models", ".", "--trueshot", __file__], "there is no mini-test.safetensors"),
        ("measure/speed.py", ["--trueshot", "no"], "there is no program 'no'; build it with 'cargo build --release'"),
        ("measure/speed.py", ["--rounds", "0"], "'0' is not a whole number of at least 1"),
        ("measure/audit.py", ["--program", __file__], "give at least one of --cifar-fs"),
        ("measure/cleanlab_tests.py", ["no"], "there is no folder 'no'"),
        ("measure/authors_program.py", [".", "--features", __file__], "there is no few_shot_utils.py in '.'"),
        ("measure/engines.py", [], "give TASKS to measure, or --make DIR"),
        ("measure/embed.py", ["no", "--model", "no"], "there is no folder 'no'"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_usage(name, words, expected, tmp_path):
    done = run(BENCH / name, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr and "Traceback" not in done.stderr


def test_a_program_that_fails_is_reported_with_its_message(tmp_path):
    broken = tmp_path / "trueshot"
    broken.write_text("#!/bin/sh\necho 'error: the disk is full' >&2\nexit 3\n")
    broken.chmod(0o755)
    done = run(BENCH / "measure/speed.py", "--trueshot", broken, cwd=tmp_path)
    assert done.returncode == 1
    assert "exit status 3" in done.stderr and "the disk is full" in done.stderr and "Traceback" not in done.stderr


def test_a_replay_in_the_authors_program_names_a_missing_package(tmp_path):
    for name in ("few_shot_utils", "models", "data_utils", "noise_utils", "mini_imagenet"):
        (tmp_path / f"{name}.py").touch()
    words = [tmp_path, "--features", __file__, "--trueshot", __file__]
    done = run(BENCH / "measure/authors_program.py", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .* does not have the Python packages .*\btorch\b.*\n", done.stderr), done.stderr


def test_two_models_of_the_same_name_are_refused_by_the_replay(tmp_path):
    for name in ("few_shot_utils.py", "models.py", "data_utils.py", "noise_utils.py", "mini_imagenet.py", "a.one", "a.two"):
        (tmp_path / name).touch()
    words = [".", "--features", __file__, "--trueshot", __file__, "--tranfs", "a.one", "--tranfs", "a.two"]
    done = run(BENCH / "measure/authors_program.py", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "two models are called 'a'" in done.stderr


@pytest.mark.parametrize(
    ("difference", "standard_error", "prototypes", "expected"),
    [
        (0.01, None, 1e-6, []),
        (-0.02, None, 1e-6, ["median, paired 40 %: -0.0200 points"]),
        (0.3, 0.1, 1e-6, []),
        (0.5, 0.1, 1e-6, ["median, paired 40 %: +0.5000 points"]),
        (0.0, None, 1e-3, ["prototypes of median: 1.0e-03"]),
        (0.0, None, float("nan"), ["prototypes of median: nan"]),
        (float("nan"), None, 1e-6, ["median, paired 40 %: +nan points"]),
    ],
)
def test_a_replay_fails_beyond_the_tolerance(monkeypatch, difference, standard_error, prototypes, expected):
    monkeypatch.syspath_prepend(str(BENCH / "measure"))
    import authors_program

    row = {"method": "median", "noise": "paired", "level": 0.4, "difference": difference}
    if standard_error is not None:
        row["standard_error"] = standard_error
    result = {"rows": [row], "tolerance": 0.01, "prototypes": {"median": prototypes}}
    assert authors_program.failures(result) == expected


def test_the_standard_error_of_a_replay_is_that_of_two_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH / "measure"))
    import authors_program

    once = authors_program.Tally([60, 70]).row(75)
    assert "standard_error" not in once and once["authors"] == pytest.approx(100 * 130 / 150)
    # Differences of -3 and 4 queries in two episodes: sqrt(25) of 150 queries.
    twice = authors_program.Tally([60, 70], [63, 66]).row(75)
    assert twice["standard_error"] == pytest.approx(100 * 5 / 150)


def test_pages_are_what_their_scripts_write_from_the_figures(tmp_path):
    done = run(BENCH / "measure/pages.py", "--check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_that_was_changed_by_hand_is_found_and_written_again(tmp_path):
    for path in (ROOT / "docs" / "results").glob("*"):
        if path.suffix in (".md", ".json"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    page = tmp_path / "speed.md"
    original = page.read_text()
    page.write_text(original.replace("Less is better", "More is better"))
    done = run(BENCH / "measure/pages.py", "--check", "--results", tmp_path, cwd=tmp_path)
    assert done.returncode == 1 and "speed.md" in done.stderr
    assert run(BENCH / "measure/pages.py", "--results", tmp_path, cwd=tmp_path).returncode == 0
    assert page.read_text() == original


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_made_embeddings_are_read_alike_here_and_by_trueshot(dtype, tmp_path):
    words = ["--rows", 31, "--classes", 3, "--dim", 8, "--dtype", dtype]
    for name in ("one.safetensors", "two.safetensors"):
        done = run(BENCH / "measure/make_bank.py", *words, "-o", name, cwd=tmp_path, options=())
        assert done.returncode == 0, done.stderr
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert one.read_bytes() == two.read_bytes()
    features, labels, items = benchlib.read_embeddings(one)
    assert features.shape == (31, 8) and features.dtype == np.float32 and items is None
    assert np.bincount(labels).tolist() == [11, 10, 10]
    assert features.min() == 0 and 0.3 < (features == 0).mean() < 0.7
    inspect(one, rows=31, dim=8)


def test_written_embeddings_come_back_with_their_names(tmp_path):
    path = tmp_path / "named.safetensors"
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    names = ["a/1.jpg", "a/ä.jpg", "b/1.jpg", "b/2.jpg"]
    benchlib.write_embeddings(path, features, np.array([0, 0, 1, 1]), ["a", "b"], names, {"backbone": "none"})
    found, labels, items = benchlib.read_embeddings(path)
    assert (found == features).all() and labels.tolist() == [0, 0, 1, 1] and items == names
    inspect(path, rows=4, dim=3)


def inspect(path, rows, dim):
    """The output of `trueshot inspect` for the file, if there is a program."""
    if binary := os.environ.get("TRUESHOT_BIN"):
        done = subprocess.run([binary, "inspect", str(path), "--format", "json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["rows"], found["dim"]) == (rows, dim)


@pytest.mark.parametrize("contents", [b"", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0not json........"])
def test_a_file_that_is_not_safetensors_is_an_error_not_a_traceback(contents, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(contents)
    done = run(BENCH / "measure/bank.py", path, "--trueshot", __file__, cwd=tmp_path)
    assert done.returncode == 1
    assert "is not a safetensors file" in done.stderr and "Traceback" not in done.stderr
