"""Data sets in their published forms, written by the installed NumPy and read by `trueshot dataset check`.

The Rust tests compare the pixels, with files that write_published.py wrote.
"""

import os
import pickle
import subprocess

import numpy as np
import pytest
from write_published import images, python2, write_all


@pytest.fixture(scope="module")
def check():
    binary = os.environ.get("TRUESHOT_BIN")
    if not binary:
        pytest.skip("TRUESHOT_BIN does not name the binary")

    def run(path, code=0):
        done = subprocess.run([binary, "dataset", "check", str(path)], capture_output=True, text=True)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "panicked" not in done.stderr
        return [line.split() for line in done.stdout.splitlines()[1:]] if code == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    write_all(folder)
    return folder


@pytest.mark.parametrize("protocol", ["0", "2", "5", "python2"])
def test_miniimagenets_caches(check, published, protocol):
    assert check(published / f"mini-{protocol}") == [["train", "3", "6", "2", "5", "x", "4"]]


def test_every_other_form(check, published):
    assert check(published / "metaopt")[0][:3] == ["train", "3", "4"]
    assert check(published / "tiered") == [["train", "3", "3", "1", "5", "x", "4"]]
    assert [line[:3] for line in check(published / "tiered-npz")[:2]] == [["train", "3", "3"], ["val", "3", "3"]]
    for form in ("python", "binary"):
        assert check(published / f"cifar-100-{form}") == [["all", "3", "5", "1", "to", "2", "32", "x", "32"]]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("planar", [False, True])
def test_labels_of_every_type(check, tmp_path, protocol, planar):
    pictures = images(4, 6, 7)
    pictures = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)) if planar else pictures
    kinds = [[1, 0, 1, 1], (1, 0, 1, 1), ["b", "a", "b", "b"], [np.int64(1), np.int32(0), np.uint8(1), np.int16(1)]]
    kinds += [np.array([1, 0, 1, 1], dtype) for dtype in ("<i8", ">i4", "u1", "i2", "?")]
    for number, labels in enumerate(kinds):
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(pickle.dumps({"data": pictures, "labels": labels}, protocol))
        assert check(path) == [["all", "2", "4", "1", "to", "3", "7", "x", "6"]], labels


class Evil:
    def __reduce__(self):
        return (os.system, ("touch called",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_ever_called(check, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"data": images(2, 3, 3), "labels": [0, Evil()]}, protocol))
    assert "it calls posix.system" in check(path, code=1)
    assert not (tmp_path / "called").exists()


def test_arrays_of_objects_and_of_other_shapes_are_refused(check, tmp_path):
    path = tmp_path / "x.pkl"
    for data, reason in [
        (np.array([{}, []], dtype=object), "elements of type 'O8'"),
        (images(2, 3, 3).astype(np.float32), "its images are an array of type f4"),
        (np.asfortranarray(images(2, 3, 3)), "columns first"),
        (np.zeros((2, 3), np.uint8), "shape [2, 3]"),
        ({1, 2}, ""),
    ]:
        path.write_bytes(pickle.dumps({"data": data, "labels": [0, 1]}, 4))
        assert reason in check(path, code=1)


def test_a_truncated_file_is_reported_wherever_it_ends(check, tmp_path):
    path = tmp_path / "x.pkl"
    for whole in (pickle.dumps({"data": images(2, 3, 3), "labels": [0, 1]}, 5), python2({"data": images(2, 3, 3), "labels": [0, 1]})):
        for length in range(0, len(whole), 17):
            path.write_bytes(whole[:length])
            assert "it is truncated at byte" in check(path, code=1)
