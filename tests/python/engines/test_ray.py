"""Ray Data on a cluster of two nodes: every task once and bit-identical, even if an actor is killed or a node is
lost."""

import os
import secrets
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

# A separate cluster, with a token and without usage statistics. Local clusters (the fourth setting) use only the
# loopback address; otherwise Ray would use 127.0.0.1 as the machine's public name. Workers start without waiting for an
# idle machine.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_worker_niceness="0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
ray = pytest.importorskip("ray")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.feather")
ts = pytest.importorskip("trueshot")

import tasks


NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def in_blocks(blocks=12):
    whole = tasks.table()
    size = -(-len(whole) // blocks)
    return ray.data.from_arrow([whole.slice(start, size) for start in range(0, len(whole), size)])


def collected(ds):
    return pa.concat_tables(ray.get(ds.to_arrow_refs()))


def test_files_read_and_audited_are_what_one_process_finds(tmp_path):
    found = collected(ts.ray.audit(ray.data.read_parquet(tasks.write(tmp_path))))
    assert found.column_names == ["task", "p_wrong", "verdict", "suggested", "weight", "expected_wrong", "error"]
    tasks.check(found)
    tasks.check_errors(found)


def test_an_actor_that_is_killed_costs_no_task_and_doubles_none(tmp_path):
    def stumble(batch):
        """Runs in the actors of the audit; the first one with task 60 records its process and kills itself."""
        import os
        import signal

        context = ray.get_runtime_context()
        (tmp_path / f"node-{context.get_node_id()}").touch()
        killed = tmp_path / "killed"
        if "task 060" in batch["task"].to_pylist() and not killed.exists():
            killed.write_text(f"{context.get_actor_id()} {os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    ds = in_blocks().map_batches(stumble, batch_format="pyarrow", batch_size=None)
    audited = ts.ray.audit(ds, actors=2).materialize()
    assert "MapBatches(stumble)->MapBatches(_Worker)" in audited.stats(), "both must be in one actor"
    tasks.check(collected(audited))
    actor, _ = (tmp_path / "killed").read_text().split()
    assert actor != "None"
    assert len(list(tmp_path.glob("node-*"))) == 2, "both nodes had a share"


def test_a_node_that_is_lost_costs_no_task_and_doubles_none(cluster, tmp_path):
    def alive():
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def tell(batch):
        """Runs in the actors of the audit, slowly, so that all nodes get some tasks."""
        import time

        (tmp_path / ray.get_runtime_context().get_node_id()).touch()
        time.sleep(0.3)
        return batch

    before = alive()
    doomed = cluster.add_node(**NODE)
    (name,) = alive() - before
    over = threading.Event()

    def lose():
        while not (tmp_path / name).exists() and not over.is_set():
            time.sleep(0.01)
        cluster.remove_node(doomed, allow_graceful=False)

    losing = threading.Thread(target=lose)
    losing.start()
    try:
        ds = in_blocks(30).map_batches(tell, batch_format="pyarrow", batch_size=None)
        audited = ts.ray.audit(ds, actors=3).materialize()
    finally:
        over.set()
        losing.join()
    assert (tmp_path / name).exists(), "the node that was lost had a share"
    assert alive() == before
    tasks.check(collected(audited))


def test_all_nodes_can_be_held_to_one_instruction_set(tmp_path):
    pinned = {"TRUESHOT_ISA": "portable"}
    program = (
        "import sys, pyarrow as pa, pyarrow.feather as feather, tasks, trueshot as ts\n"
        "feather.write_feather(pa.table(ts.audit_batch(tasks.table())), sys.argv[1])"
    )
    path = str(tmp_path / "portable.feather")
    here = {"PYTHONPATH": os.path.dirname(tasks.__file__)}
    subprocess.run([sys.executable, "-c", program, path], env={**os.environ, **here, **pinned}, check=True)
    found = collected(ts.ray.audit(in_blocks(3), actors=1, runtime_env={"env_vars": pinned}))
    tasks.check(found, pa.feather.read_table(path))


def test_columns_that_are_asked_for_are_carried_through():
    found = collected(ts.ray.audit(in_blocks(2), carry=["shard", "task"], actors=1, batch_size=7))
    wanted = pa.table(ts.audit_batch(tasks.table(), carry=["shard", "task"]))
    tasks.check(found, wanted, by="shard")


def test_tensors_of_ray_are_taken_as_they_are():
    made = [tasks.task(number) for number in range(6)]
    rows = [
        {"task": number, "features": np.float32(features), "labels": np.array([tasks.NAMES.tolist().index(name) for name in names])}
        for number, (features, names) in enumerate(made)
    ]
    plain = [{**row, "features": row["features"].tolist(), "labels": row["labels"].tolist()} for row in rows]
    wanted = pa.table(ts.audit_batch(pa.Table.from_pylist(plain)))
    assert wanted["error"].null_count == 6
    tasks.check(collected(ts.ray.audit(ray.data.from_items(rows), actors=1)), wanted)
    even = [{**row, "features": row["features"][:4], "labels": row["labels"][:4]} for row in rows]
    plain = [{**row, "features": row["features"].tolist(), "labels": row["labels"].tolist()} for row in even]
    wanted = pa.table(ts.audit_batch(pa.Table.from_pylist(plain)))
    tasks.check(collected(ts.ray.audit(ray.data.from_items(even), actors=1)), wanted)


def test_classifiers_and_prototypes_are_those_of_one_process():
    tasks.check(collected(ts.ray.fit(in_blocks(3), actors=1)), pa.table(ts.fit_batch(tasks.table())))
    found = collected(ts.ray.prototypes(in_blocks(3), method="median", actors=1))
    tasks.check(found, pa.table(ts.prototypes_batch(tasks.table(), method="median")))


def test_wrong_columns_and_options_are_refused_before_anything_starts():
    whole = tasks.table()
    for columns, said in [
        (whole.drop_columns(["labels"]), "no column 'labels'; it has: task, features, shard"),
        (whole.set_column(1, "features", whole["task"]), "column 'features' is Utf8"),
        (whole.set_column(2, "labels", pa.array([[0.5]] * len(whole))), "expected a list of strings, integers or booleans"),
        (whole.set_column(2, "labels", pa.nulls(len(whole))), "column 'labels' is Null"),
    ]:
        with pytest.raises(TypeError, match=said):
            ts.ray.audit(ray.data.from_arrow(columns))
    with pytest.raises(TypeError, match="no column 'user' to carry"):
        ts.ray.audit(in_blocks(1), carry=["user"])
    with pytest.raises(TypeError, match="list of names"):
        ts.ray.audit(in_blocks(1), carry="user")
    with pytest.raises(ValueError, match="threads is 0"):
        ts.ray.audit(in_blocks(1), threads=0)
    with pytest.raises(ValueError, match="did you mean 'median'"):
        ts.ray.prototypes(in_blocks(1), method="medain")
    with pytest.raises(TypeError, match="ds must be a ray.data.Dataset, got Table"):
        ts.ray.audit(whole)


def test_wrong_columns_that_appear_only_at_run_time_are_named_by_the_actor():
    ds = in_blocks(2).map_batches(lambda batch: batch.drop_columns(["labels"]), batch_format="pyarrow")
    with pytest.raises(Exception, match="no column 'labels'; it has: task, features, shard"):
        ts.ray.audit(ds, actors=1).materialize()


def test_ray_is_imported_when_it_is_used_and_missed_by_name():
    program = "import sys, trueshot; print('ray' in sys.modules); sys.modules['ray'] = None\ntry: trueshot.ray\nexcept ImportError as e: print(e)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "False" and said[1].endswith("hint: pip install 'trueshot[ray]'")
