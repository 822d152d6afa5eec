"""The package itself: documentation, types, plots, and its command line."""

import doctest
import importlib
import importlib.metadata
import io
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set
from trueshot._progress import counting

NEEDS = {
    "_batches": "pyarrow",
    "datalab": "datasets",
    "easyfsl": "torch",
    "plot": "matplotlib",
    "ray": "ray",
    "spark": "pyspark",
}
MODULES = sorted(module.name for module in pkgutil.iter_modules(ts.__path__) if module.name not in ("_native", "__main__"))


@pytest.mark.parametrize("name", ["", *MODULES])
def test_the_examples_in_the_documentation_are_true(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(f"trueshot.{name}".rstrip("."))
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("page", ["python.md", "own-network.md"])
def test_the_lines_in_the_book_run(page, tmp_path):
    if page == "own-network.md":
        pytest.importorskip("torch")
    run = Path(__file__).parent / "readme.py"
    page = Path(__file__).parents[3] / "docs" / page
    done = subprocess.run([sys.executable, run, page], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_in_the_page_on_own_networks_needs_no_pytorch(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "own-network.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[-1]
    assert "torch" not in program
    # In place of what ts.embed returns: 240 rows of 8 classes.
    X, y, _ = support_set(ways=8, shots=30, dim=32, wrong=())
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "ts": ts, "Path": Path, "rows": ts.Embeddings(X, y)}
    exec(compile(program, "own-network.md", "exec"), names)
    methods = [method["method"] for method in names["found"].to_dict()["settings"][0]["methods"]]
    assert methods == ["protonet", "median", "relabel", "trimmed"]
    table = (tmp_path / "table.tex").read_text()
    assert "\\textbf" in table and "trimmed" in table and "confused" in table


def test_every_public_name_is_there_and_documented():
    for name in ts.__all__:
        assert getattr(ts, name) is not None
        assert name == "__version__" or getattr(ts, name).__doc__


def test_listing_the_members_of_the_package_needs_no_optional_package():
    program = "import inspect, sys; sys.modules['torch'] = None; import trueshot; inspect.getmembers(trueshot)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_it_imports_nothing_large():
    large = ("sklearn", "pandas", "torch", "pyarrow", "scipy", "polars", "datasets", "PIL")
    program = f"import sys, trueshot; print([m for m in {large} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_command_line_is_inside(tmp_path):
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "trueshot", *map(str, arguments)], capture_output=True, text=True)

    assert ts.__version__ in run("--version").stdout
    X, y, _ = support_set()
    np.savez(tmp_path / "support.npz", x=X, y=y)
    done = run("audit", tmp_path / "support.npz", "--format", "json")
    assert done.returncode == 0 and done.stdout == ts.audit(X, y).to_json()
    assert run("audit", tmp_path / "support.npz", "--check").returncode == 3
    assert run("audit", tmp_path / "nowhere.npz").returncode == 1
    wrong = run("adit")
    assert wrong.returncode == 2 and "audit" in wrong.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.parametrize("start", [["-m", "trueshot"], ["-c", "import sys; from trueshot.__main__ import main; sys.exit(main())"]])
def test_ctrl_c_ends_a_command_that_has_no_handler_of_its_own(start):
    command = [sys.executable, *start, "bench", "--only", "eval_mean", "--seconds", "60", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT, process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_onnx_models_run_in_a_process_of_the_same_interpreter(tmp_path):
    from trueshot._pictures import _png

    for shade in (10, 60, 110, 160):
        picture = tmp_path / "photos" / f"class {shade % 20}" / f"{shade}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(_png(np.full((9, 9, 3), shade, dtype=np.uint8)))
    # The process does not import modules from the current folder.
    (tmp_path / "numpy.py").write_text("raise SystemExit('a module of the current folder')")
    model = Path(__file__).parents[3] / "crates" / "vision" / "tests" / "models" / "fixed.onnx"
    main = "import sys; sys.path.pop(0); from trueshot.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "embed", "photos", "-o", "rows.safetensors", "--no-cache", "--backbone", model]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "4 embeddings of 3 dimensions" in done.stderr, done.stderr


def test_the_demo_works_without_the_whole_data_set_and_other_commands_say_where_it_is(tmp_path):
    def run(*arguments, **variables):
        command = [sys.executable, "-m", "trueshot", *arguments]
        kept = {name: value for name, value in os.environ.items() if name != "TRUESHOT_ASSETS"}
        return subprocess.run(command, env={**kept, **variables}, cwd=tmp_path, capture_output=True, text=True)

    done = run("demo", "--episodes", "10", "--folder", "drawings")
    assert done.returncode == 0 and "and 60 are after the repair" in done.stdout and "tranfs" not in done.stdout, done.stderr
    assert all((tmp_path / page).exists() for page in ["report.html", "report-audit.html"])
    assert len(list((tmp_path / "drawings").glob("*/*.png"))) == 60

    embed = ["embed", "omniglot", "--split", "val", "-o", "rows.safetensors"]
    done = run(*embed)
    assert done.returncode == 1 and "assets" in done.stderr and "TRUESHOT_ASSETS" in done.stderr
    folder = str(Path(__file__).parents[3] / "crates" / "omniglot" / "assets")
    done = run(*embed, TRUESHOT_ASSETS=folder)
    assert done.returncode == 0 and (tmp_path / "rows.safetensors").exists(), done.stderr


def test_the_licences_of_what_is_built_in_are_part_of_the_wheel():
    names = {file.name for file in importlib.metadata.files("trueshot")}
    assert {"LICENSE-APACHE", "LICENSE-MIT", "efficientnet-lite0.LICENSE", "omniglot.LICENSE"} <= names


def test_plots_are_drawn_on_the_axes_given():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    X, y, truth = support_set(ways=6, shots=40, wrong=(3, 50))
    found = ts.audit(X, y)
    figure, axes = pyplot.subplots(2, 2)
    assert ts.plot.suspects(found, axes[0, 0], most=5) is axes[0, 0] and len(axes[0, 0].patches) == 5
    ts.plot.scatter(found, X, axes[0, 1])
    evaluation = ts.evaluate(X, y, methods=["protonet", "median"], episodes=100)
    ts.plot.accuracy(evaluation, axes[1, 0])
    assert len(axes[1, 0].get_legend().get_texts()) == 2
    clf = ts.FewShotClassifier("median").fit(X[::8], y[::8])
    ts.plot.calibration(clf.predict_proba(X), truth, clf.classes_, axes[1, 1])
    figure.canvas.draw()
    pyplot.close(figure)
    with pytest.raises(ValueError, match="paired"):
        ts.plot.accuracy(evaluation, noise="paired")


def test_the_types_are_those_of_the_stubs():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "trueshot._native", "--ignore-missing-stub"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_progress_without_tqdm_is_lines_of_text(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)

    def lines(total, calls):
        with counting(True, total, "image") as report:
            for call in calls:
                report(*call)
        return capsys.readouterr().err.splitlines()

    assert lines(40, [(done,) for done in range(1, 41)]) == [f"{done}/40 images" for done in range(4, 41, 4)]
    assert lines(0, [(done,) for done in range(32, 321, 32)]) == ["32 images", "64 images", "128 images", "256 images"]
    assert lines(0, [(2,), (4, 10), (10, 10)]) == ["2 images", "4/10 images", "10/10 images"]


def test_the_bar_of_tqdm_gets_a_total_that_is_known_only_later(monkeypatch):
    bar = pytest.importorskip("tqdm").tqdm(total=None, disable=False, file=io.StringIO())
    monkeypatch.setattr("tqdm.auto.tqdm", lambda total, unit: bar)
    with counting(True, 0, "step") as report:
        report(3)
        assert (bar.n, bar.total) == (3, None)
        report(5, 20)
        assert (bar.n, bar.total) == (5, 20)
        report(20, 20)
    assert bar.n == 20
