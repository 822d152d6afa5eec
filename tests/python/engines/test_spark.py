"""Spark with two executors: every task once and bit-identical, even if workers and executors are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
ts = pytest.importorskip("trueshot")

import tasks


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    # Executors are separate processes of the installed package, which listen only on the loopback address.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
        # Otherwise one Spark task would read all the small files.
        "spark.sql.files.openCostInBytes": "128m",
    }
    builder = pyspark.sql.SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def df(spark, tmp_path):
    return spark.read.parquet(tasks.write(tmp_path))


def samples(spark):
    """One row per sample, including broken tasks, if samples can express the problem."""
    rows = []
    for number in range(0, tasks.TASKS, 3):
        features, names = tasks.task(number)
        if names is not None and len(names) == len(features):
            rows += [(f"task {number:03}", place, *sample) for place, sample in enumerate(zip(features, names))]
    rows += [("one class", place, [0.5, 1.5], "ant") for place in range(3)] + [(None, 0, [0.5, 1.5], "ant")]
    return spark.createDataFrame(rows, "task string, place int, features array<float>, label string").repartition(4)


def test_files_read_and_audited_are_what_one_process_finds(df):
    assert df.rdd.getNumPartitions() > 2
    found = ts.spark.audit(df)
    assert found.columns == ["task", "p_wrong", "verdict", "suggested", "weight", "expected_wrong", "error"]
    found = found.toArrow()
    tasks.check(found)
    tasks.check_errors(found)


def stumbling(folder, of_whom):
    """A step before the audit: the first process with task 60 records itself and kills the given one."""

    def stumble(batches):
        import os
        import signal

        def parent(process):
            status = open(f"/proc/{process}/status").read()
            return int(status.split("PPid:")[1].split()[0])

        daemon = os.getppid()
        for batch in batches:
            killed = folder / "killed"
            if "task 060" in batch["task"].to_pylist() and not killed.exists():
                victims = open(f"/proc/{daemon}/task/{daemon}/children").read().split()
                if of_whom == "executor":
                    victims = [parent(daemon)]
                killed.write_text(" ".join(open(f"/proc/{victim}/comm").read().strip() for victim in victims))
                for victim in sorted(map(int, victims), key=lambda victim: victim == os.getpid()):
                    os.kill(victim, signal.SIGKILL)
            yield batch

    return stumble


@pytest.mark.parametrize("of_whom", ["Python workers", "executor"])
def test_a_worker_that_is_killed_costs_no_task_and_doubles_none(df, tmp_path, of_whom):
    stumbled = df.mapInArrow(stumbling(tmp_path, of_whom), df.schema)
    tasks.check(ts.spark.audit(stumbled).toArrow())
    killed = (tmp_path / "killed").read_text()
    assert killed == "java" if of_whom == "executor" else killed.split().count(killed.split()[0]) >= 2, killed


def test_samples_in_rows_of_their_own_are_what_one_process_finds(spark):
    found = ts.spark.audit_samples(samples(spark), order="place").toArrow()
    found = found.sort_by([("task", "ascending"), ("place", "ascending")])
    assert found.column_names == ["task", "place", "p_wrong", "verdict", "suggested", "weight", "error"]
    by_task: dict = {}
    for row in found.to_pylist():
        by_task.setdefault(row["task"], []).append(row)
    one_process = {row["task"]: row for row in pa.table(ts.audit_batch(tasks.table())).to_pylist()}
    wanted = [f"task {number:03}" for number in range(0, tasks.TASKS, 3) if number != 99]
    assert [name for name in by_task if name in one_process] == wanted
    for name in wanted:
        rows, whole = by_task[name], one_process[name]
        for column in ("p_wrong", "verdict", "suggested", "weight"):
            given = [row[column] for row in rows]
            assert given == (whole[column] if whole["error"] is None else [None] * len(rows)), name
        assert {row["error"] for row in rows} == {whole["error"]}
    assert len(by_task["one class"]) == 3 and "at least two classes" in by_task["one class"][2]["error"]
    assert by_task[None][0]["error"] == "the task is null"


def test_columns_that_are_asked_for_are_carried_through(df, spark):
    found = ts.spark.audit(df, carry=["shard", "task"]).toArrow()
    tasks.check(found, pa.table(ts.audit_batch(tasks.table(), carry=["shard", "task"])), by="shard")
    found = ts.spark.audit_samples(samples(spark), carry=["label", "features"]).where("p_wrong > 0.5").toArrow()
    assert found.column_names[:3] == ["label", "features", "p_wrong"] and len(found) > 0


def test_classifiers_and_prototypes_are_those_of_one_process(df):
    tasks.check(ts.spark.fit(df).toArrow(), pa.table(ts.fit_batch(tasks.table())))
    found = ts.spark.prototypes(df, method="median").toArrow()
    tasks.check(found, pa.table(ts.prototypes_batch(tasks.table(), method="median")))


def test_wrong_columns_and_options_are_refused_before_anything_starts(df, spark):
    for columns, said in [
        (["task", "features"], "no column 'labels'; it has: task, features"),
        (["task", "task AS features", "labels"], "column 'features' is Utf8"),
        (["features", "array(0.5D) AS labels"], "expected a list of strings, integers or booleans"),
        (["features", "NULL AS labels"], "column 'labels' is Null"),
        (["named_struct('type', 1) AS features", "labels"], "column 'features' is Struct"),
    ]:
        with pytest.raises(TypeError, match=said):
            ts.spark.audit(df.selectExpr(*columns))
    with pytest.raises(TypeError, match="no column 'user'"):
        ts.spark.audit(df, carry=["user"])
    with pytest.raises(TypeError, match="list of names"):
        ts.spark.audit(df, carry="task")
    with pytest.raises(ValueError, match="threads is 0"):
        ts.spark.audit(df, threads=0)
    with pytest.raises(TypeError, match="no column 'label'"):
        ts.spark.audit_samples(df)
    with pytest.raises(TypeError, match="expected a list of strings, integers or booleans"):
        ts.spark.audit_samples(samples(spark).selectExpr("task", "features", "0.5D AS label"))
    with pytest.raises(TypeError, match="column 'weight' would occur twice: remove it from carry"):
        ts.spark.audit_samples(samples(spark).selectExpr("*", "1 AS weight"), carry=["weight"])
    with pytest.raises(TypeError, match="df must be a pyspark.sql.DataFrame, got Table"):
        ts.spark.audit(tasks.table())


def test_spark_is_imported_when_it_is_used_and_missed_by_name():
    program = "import sys, trueshot; print('pyspark' in sys.modules); sys.modules['pyspark'] = None\ntry: trueshot.spark\nexcept ImportError as e: print(e)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "False" and said[1].endswith("hint: pip install 'trueshot[spark]'")
