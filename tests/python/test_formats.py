"""Files written by Python, read by `trueshot inspect`.

The Rust tests write their files with Rust libraries. Files of NumPy, PyArrow and safetensors differ in alignment,
encodings and metadata: these tests write all variants and check the output of `trueshot inspect FILE --format json`.
`TRUESHOT_BIN` names the binary.
"""

import json
import os
import struct
import subprocess
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

ROWS, DIM = 60, 7
CLASSES = ["ant", "bee", "cow"]


@pytest.fixture(scope="module")
def binary():
    path = os.environ.get("TRUESHOT_BIN")
    if not path:
        pytest.skip("TRUESHOT_BIN does not name the binary")
    return path


@pytest.fixture()
def inspect(binary):
    def run(path):
        done = subprocess.run([binary, "inspect", str(path), "--format", "json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture()
def refusal(binary):
    def run(path):
        done = subprocess.run([binary, "inspect", str(path), "--format", "json"], capture_output=True, text=True)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert "panicked" not in done.stderr
        return done.stderr

    return run


@pytest.fixture()
def features():
    """Values that are exact in half precision, with distinct rows."""
    return (np.arange(ROWS * DIM).reshape(ROWS, DIM) / 4 - 50).astype(np.float32)


@pytest.fixture()
def numbers():
    return np.arange(ROWS) % 3


@pytest.fixture()
def names(numbers):
    return np.array(CLASSES)[numbers]


@pytest.fixture()
def expected(inspect, tmp_path, features, numbers):
    """The fingerprint of the same data in the simplest file."""
    path = tmp_path / "expected.safetensors"
    save_file({"features": features, "labels": numbers}, path, metadata={"classes": json.dumps(CLASSES)})
    return inspect(path)["fingerprint"]


def check(found, precision="f32", classes=CLASSES):
    assert (found["rows"], found["dim"], found["precision"]) == (ROWS, DIM, precision)
    assert [(c["name"], c["count"]) for c in found["classes"]] == [(name, ROWS // 3) for name in classes]
    assert found["duplicates"]["rows"] == 0 and found["non_finite"]["count"] == 0
    assert found["constant_dimensions"] == 0


# --- safetensors


@pytest.mark.parametrize("label_type", ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"])
def test_safetensors_with_labels_of_any_width(inspect, tmp_path, features, numbers, expected, label_type):
    path = tmp_path / "a.safetensors"
    metadata = {"format": "trueshot-embeddings/1", "classes": json.dumps(CLASSES), "backbone": "conv4"}
    save_file({"features": features, "labels": numbers.astype(label_type)}, path, metadata=metadata)
    found = inspect(path)
    check(found)
    assert (found["backbone"], found["fingerprint"]) == ("conv4", expected)


@pytest.mark.parametrize("dtype, precision", [("float16", "f16"), ("float32", "f32"), ("float64", "f32")])
def test_safetensors_of_any_precision(inspect, tmp_path, features, numbers, dtype, precision):
    path = tmp_path / "a.safetensors"
    save_file({"features": features.astype(dtype), "labels": numbers}, path)
    check(inspect(path), precision, classes=["0", "1", "2"])


def test_safetensors_with_item_names_as_tensors(inspect, tmp_path, features, numbers):
    path = tmp_path / "a.safetensors"
    names = [f"{row}.jpg".encode() for row in range(ROWS)]
    offsets = np.cumsum([0] + [len(name) for name in names]).astype(np.int64)
    text = np.frombuffer(b"".join(names), np.uint8)
    save_file({"features": features, "labels": numbers, "items": text, "item_offsets": offsets}, path)
    assert inspect(path)["has_items"] is True


def test_safetensors_with_item_names_as_a_list(inspect, tmp_path, features, numbers):
    path = tmp_path / "a.safetensors"
    items = json.dumps([f"{row}.jpg" for row in range(ROWS)])
    save_file({"features": features, "labels": numbers}, path, metadata={"items": items})
    assert inspect(path)["has_items"] is True


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool"])
def test_safetensors_of_whole_numbers_are_refused(refusal, tmp_path, features, numbers, dtype):
    path = tmp_path / "a.safetensors"
    save_file({"features": features.astype(dtype), "labels": numbers}, path)
    assert "features are" in refusal(path)


# --- npy


@pytest.mark.parametrize("dtype, precision", [
    ("<f2", "f16"), (">f2", "f16"), ("<f4", "f32"), (">f4", "f32"), ("<f8", "f32"), (">f8", "f32"),
])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_in_every_byte_and_memory_order(inspect, tmp_path, features, names, expected, dtype, precision, order):
    np.save(tmp_path / "X.npy", np.asarray(features.astype(dtype), order=order))
    np.save(tmp_path / "y.npy", names)
    found = inspect(tmp_path / "X.npy")
    check(found, precision)
    assert precision == "f16" or found["fingerprint"] == expected


@pytest.mark.parametrize("label_type", ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", "?"])
def test_npy_with_labels_of_any_width(inspect, tmp_path, features, numbers, label_type):
    labels = numbers.astype(label_type)
    np.save(tmp_path / "X.npy", features)
    np.save(tmp_path / "y.npy", labels)
    found = inspect(tmp_path / "X.npy")
    assert [c["count"] for c in found["classes"]] == np.unique(labels, return_counts=True)[1].tolist()


@pytest.mark.parametrize("label_type", ["<U3", ">U8", "S3", "S9"])
def test_npy_with_labels_as_text(inspect, tmp_path, features, names, expected, label_type):
    np.save(tmp_path / "X.npy", features)
    np.save(tmp_path / "y.npy", names.astype(label_type))
    assert inspect(tmp_path / "X.npy")["fingerprint"] == expected


def test_npy_with_non_ascii_class_names(inspect, tmp_path, features, numbers):
    words = ["Ähre", "Öl", "日本語🐝"]
    np.save(tmp_path / "X.npy", features)
    np.save(tmp_path / "y.npy", np.array(words)[numbers])
    assert [c["name"] for c in inspect(tmp_path / "X.npy")["classes"]] == sorted(words)


@pytest.mark.parametrize("pair", [
    ("bank.npy", "bank.labels.npy"), ("bank.npy", "bank_labels.npy"), ("features.npy", "labels.npy"),
    ("X_train.npy", "y_train.npy"), ("x1.npy", "y1.npy"),
])
def test_npy_labels_are_found_next_to_the_features(inspect, tmp_path, features, names, pair):
    np.save(tmp_path / pair[0], features)
    np.save(tmp_path / pair[1], names)
    check(inspect(tmp_path / pair[0]))


def test_npy_without_labels_lists_the_expected_file_names(refusal, tmp_path, features):
    np.save(tmp_path / "bank.npy", features)
    assert "bank_labels.npy" in refusal(tmp_path / "bank.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version(inspect, tmp_path, features, names, version):
    with open(tmp_path / "X.npy", "wb") as file:
        np.lib.format.write_array(file, features, version=version)
    np.save(tmp_path / "y.npy", names)
    check(inspect(tmp_path / "X.npy"))


def test_npy_pickles_are_refused(refusal, tmp_path, features, names):
    np.save(tmp_path / "X.npy", features)
    np.save(tmp_path / "y.npy", names.astype(object), allow_pickle=True)
    assert "pickle" in refusal(tmp_path / "X.npy")


# --- npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("keys", [("x", "y"), ("X", "Y"), ("features", "labels"), ("embeddings", "labels")])
def test_npz_under_every_key(inspect, tmp_path, features, names, expected, save, keys):
    save(tmp_path / "a.npz", **{keys[0]: features, keys[1]: names})
    assert inspect(tmp_path / "a.npz")["fingerprint"] == expected


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_classes_and_items(inspect, tmp_path, features, numbers, expected, save):
    items = np.array([f"{row}.jpg" for row in range(ROWS)])
    save(tmp_path / "a.npz", x=features, y=numbers, classes=np.array(CLASSES), items=items)
    found = inspect(tmp_path / "a.npz")
    assert (found["fingerprint"], found["has_items"]) == (expected, True)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("array", ["x", "y"])
def test_npz_with_a_damaged_array_is_refused(refusal, tmp_path, features, names, save, array):
    path = tmp_path / "a.npz"
    save(path, x=features, y=names)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{array}.npy")
    damaged = bytearray(path.read_bytes())
    # The last byte of the array; the header before it has a fixed part and the name.
    start = damaged.index(b"PK\x03\x04", member.header_offset)
    name, extra = struct.unpack_from("<HH", damaged, start + 26)
    damaged[start + 30 + name + extra + member.compress_size - 1] ^= 1
    path.write_bytes(damaged)
    assert "a.npz" in refusal(path)


# --- tables


def list_column(features, kind, dtype):
    values = pa.array(features.astype(dtype).ravel())
    offsets = np.arange(ROWS + 1) * DIM
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    if kind == "large_list":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(values, DIM)
    sizes = np.full(ROWS, DIM)
    if kind == "list_view":
        return pa.ListViewArray.from_arrays(pa.array(offsets[:-1], pa.int32()), pa.array(sizes, pa.int32()), values)
    return pa.LargeListViewArray.from_arrays(pa.array(offsets[:-1], pa.int64()), pa.array(sizes, pa.int64()), values)


def label_column(names, numbers, kind):
    if kind == "dictionary":
        return pa.array(names).dictionary_encode()
    if kind in ("utf8", "large_utf8", "string_view"):
        types = {"utf8": pa.utf8(), "large_utf8": pa.large_utf8(), "string_view": pa.string_view()}
        return pa.array(names.tolist(), types[kind])
    return pa.array(numbers.astype(kind))


def table(features, names, numbers, lists="list", dtype="float32", labels="utf8"):
    return pa.table({
        "other": pa.array(range(ROWS)),
        "embedding": list_column(features, lists, dtype),
        "label": label_column(names, numbers, labels),
        "path": pa.array([f"{row}.jpg" for row in range(ROWS)]),
    })


DTYPES = [("float16", "f16"), ("float32", "f32"), ("float64", "f32")]
LABELS = ["utf8", "large_utf8", "string_view", "dictionary", "int8", "uint8", "int32", "int64", "uint64", "bool"]


def write_arrow(path, data, stream=False, compression=None, rows=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=rows)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("dtype, precision", DTYPES)
@pytest.mark.parametrize("lists", ["list", "large_list", "fixed", "list_view", "large_list_view"])
def test_arrow_in_every_form(inspect, tmp_path, features, names, numbers, expected, stream, compression, dtype, precision, lists):
    for rows in (None, 17):
        path = tmp_path / "a.arrow"
        write_arrow(path, table(features, names, numbers, lists, dtype), stream, compression, rows)
        found = inspect(path)
        check(found, precision)
        assert found["has_items"] is True
        assert precision == "f16" or found["fingerprint"] == expected


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("stream", [False, True])
def test_arrow_with_labels_of_any_type(inspect, tmp_path, features, names, numbers, labels, stream):
    path = tmp_path / "a.arrow"
    write_arrow(path, table(features, names, numbers, labels=labels), stream)
    found = inspect(path)
    assert sum(c["count"] for c in found["classes"]) == ROWS
    assert len(found["classes"]) == (2 if labels == "bool" else 3)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather(inspect, tmp_path, features, names, numbers, expected, compression):
    path = tmp_path / "a.feather"
    feather.write_feather(table(features, names, numbers), path, compression=compression)
    assert inspect(path)["fingerprint"] == expected


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dtype, precision", DTYPES)
@pytest.mark.parametrize("lists", ["list", "large_list", "fixed"])
def test_parquet_in_every_form(inspect, tmp_path, features, names, numbers, expected, compression, version, dtype, precision, lists):
    path = tmp_path / "a.parquet"
    data = table(features, names, numbers, lists, dtype)
    pq.write_table(data, path, compression=compression, data_page_version=version, row_group_size=23)
    found = inspect(path)
    check(found, precision)
    assert found["has_items"] is True
    assert precision == "f16" or found["fingerprint"] == expected


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_with_labels_of_any_type(inspect, tmp_path, features, names, numbers, labels, dictionary):
    path = tmp_path / "a.parquet"
    pq.write_table(table(features, names, numbers, labels=labels), path, use_dictionary=dictionary)
    found = inspect(path)
    assert sum(c["count"] for c in found["classes"]) == ROWS


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY"])
def test_parquet_strings_in_every_encoding(inspect, tmp_path, features, names, numbers, expected, encoding):
    path = tmp_path / "a.parquet"
    pq.write_table(table(features, names, numbers), path, use_dictionary=False, column_encoding={"label": encoding})
    assert inspect(path)["fingerprint"] == expected


def test_parquet_strings_that_can_claim_any_length_are_refused(refusal, tmp_path, features, names, numbers):
    path = tmp_path / "a.parquet"
    encoding = {"label": "DELTA_BYTE_ARRAY"}
    pq.write_table(table(features, names, numbers), path, use_dictionary=False, column_encoding=encoding)
    assert "DELTA_BYTE_ARRAY" in refusal(path)


def test_parquet_with_byte_stream_split(inspect, tmp_path, features, names, numbers, expected):
    path = tmp_path / "a.parquet"
    data = table(features, names, numbers)
    pq.write_table(data, path, use_dictionary=False, use_byte_stream_split=["embedding.list.element"])
    assert inspect(path)["fingerprint"] == expected


@pytest.mark.parametrize("row, problem", [
    ([1.0], "row 2 has 1 features"), (None, "features of row 2 are null"), ([1.0, None], "row 2 has a feature that is null"),
])
@pytest.mark.parametrize("extension", ["arrow", "parquet"])
def test_tables_with_nulls_or_short_rows_are_refused_with_the_row(refusal, tmp_path, row, problem, extension):
    path = tmp_path / f"a.{extension}"
    data = pa.table({"x": pa.array([[1.0, 2.0], [3.0, 4.0], row], pa.list_(pa.float32())), "y": [0, 1, 0]})
    write_arrow(path, data) if extension == "arrow" else pq.write_table(data, path)
    assert problem in refusal(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_parquet_pages_are_compared_with_their_checksums(inspect, refusal, tmp_path, features, names, version, codec):
    path = tmp_path / "a.parquet"
    table = pa.table({"embedding": list_column(features, "fixed", "float32"), "label": names})
    pq.write_table(table, path, data_page_version=version, compression=codec, write_page_checksum=True)
    check(inspect(path))
    whole, group = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
    for column in range(group.num_columns):
        chunk = group.column(column)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        damaged = bytearray(whole)
        damaged[start + chunk.total_compressed_size - 1] ^= 1
        path.write_bytes(damaged)
        message = refusal(path)
        assert "is damaged: the checksum of a page of column" in message and chunk.path_in_schema in message, message


# --- what inspect says


def test_the_first_non_finite_value_is_located(inspect, tmp_path, features, names):
    features[11, 3] = np.nan
    features[12, 0] = np.inf
    np.savez(tmp_path / "a.npz", x=features, y=names)
    found = inspect(tmp_path / "a.npz")
    assert found["non_finite"] == {"count": 2, "first": {"row": 11, "column": 3, "value": "NaN"}}
    assert found["fingerprint"] is None and any("not finite" in text for text in found["warnings"])


def test_duplicates_across_classes_are_counted(inspect, tmp_path, features, names):
    features[1] = features[0]
    np.savez(tmp_path / "a.npz", x=features, y=names)
    found = inspect(tmp_path / "a.npz")
    assert found["duplicates"] == {"rows": 1, "groups": 1, "across_classes": 1, "examples": [[0, 1]]}


@pytest.mark.parametrize("extension", ["safetensors", "npz", "parquet", "arrow", "feather"])
def test_a_truncated_file_is_refused_without_a_panic(refusal, tmp_path, features, names, numbers, extension):
    path = tmp_path / f"a.{extension}"
    if extension == "safetensors":
        save_file({"features": features, "labels": numbers}, path)
    elif extension == "npz":
        np.savez_compressed(path, x=features, y=names)
    elif extension == "parquet":
        pq.write_table(table(features, names, numbers), path)
    else:
        write_arrow(path, table(features, names, numbers))
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 23)):
        path.write_bytes(whole[:length])
        refusal(path)
