"""Audits of arrays: the same results as on the command line, for every layout and type of array."""

import base64
import copy
import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

NAMES = np.array(["ant", "bee", "cow", "dog", "eel"])


def same(one, other):
    return one.to_json() == other.to_json()


def test_the_wrong_label_is_found_and_the_right_one_suggested(rows):
    X, y, truth = rows
    found = ts.audit(X, NAMES[y])
    assert found.ranking[0] == 3
    assert found.verdict[3] == "relabel" and found.suggested[3] == NAMES[truth[3]]
    assert found.suggested[0] is None
    assert found.p_wrong.dtype == np.float32 and found.p_wrong.shape == (25,)
    assert found.neighbours.shape == (25, 5) and found.neighbours.dtype == np.int64
    assert 0 < found.expected_wrong < 5 and len(found) == 25
    kept, labels = found.cleaned()
    assert (labels == NAMES[truth[kept]]).all()


@pytest.mark.parametrize("labels", [NAMES, np.arange(5) * 10 - 20, np.arange(5).astype(np.uint8)])
def test_what_python_finds_is_what_the_command_line_finds(rows, labels, command, tmp_path):
    X, y, _ = rows
    np.savez(tmp_path / "support.npz", x=X, y=labels[y])
    assert ts.audit(X, labels[y]).to_json() == command("audit", tmp_path / "support.npz", "--format", "json")
    assert ts.audit(X, labels[y]).to_csv() == command("audit", tmp_path / "support.npz", "--format", "csv")


def test_half_precision_and_large_sets_agree_with_the_command_line_too(command, tmp_path):
    X, y, _ = support_set(ways=12, shots=20, wrong=range(0, 240, 7))
    X = X.astype(np.float16)
    np.savez(tmp_path / "support.npz", x=X, y=y)
    for threads in (1, 3):
        found = ts.audit(X, y, threads=threads).to_json()
        assert found == command("audit", tmp_path / "support.npz", "--format", "json", "--threads", "2")


def test_the_form_of_an_array_changes_nothing(rows):
    X, y, _ = rows
    plain = ts.audit(X, y)
    wide = np.zeros((50, 128), np.float32)
    wide[::2, ::2] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    for other in [
        np.asfortranarray(X), wide[::2, ::2], X[::-1][::-1], X[:, ::-1].copy()[:, ::-1], frozen,
        X.astype(np.float64), X.astype(">f4"), X.tolist(), X.astype(object),
    ]:  # fmt: skip
        assert same(plain, ts.audit(other, y))


def test_settings_are_those_of_the_command_line(rows, command, tmp_path):
    X, y, _ = rows
    np.savez(tmp_path / "support.npz", x=X, y=y)
    mine = ts.audit(X, y, certainty=0.9, expected_noise=0.3, neighbours=2)
    theirs = command(
        "audit", tmp_path / "support.npz", "--format", "json",
        "--certainty", 0.9, "--expected-noise", 30, "--neighbours", 2,
    )  # fmt: skip
    assert mine.to_json() == theirs
    confirmed = np.zeros(25, bool)
    confirmed[3] = True
    assert ts.audit(X, y, confirmed=confirmed).verdict[3] == "keep"


def test_counts_are_those_of_the_report_and_of_the_columns(rows, command, tmp_path):
    X, y, _ = rows
    np.savez(tmp_path / "support.npz", x=X, y=NAMES[y])
    for certainty in (0.5, 0.75, 0.99):
        found = ts.audit(X, NAMES[y], certainty=certainty)
        written = json.loads(command("audit", tmp_path / "support.npz", "--format", "json", "--certainty", str(certainty)))
        assert found.counts == written["counts"] == found.to_dict()["counts"]
        actions = ("relabel", "quarantine", "review", "keep")
        assert [found.counts[action] for action in actions] == [int((found.action == action).sum()) for action in actions]
        assert sum(found.counts[action] for action in actions) == found.counts["items"] == 25
        assert found.counts["suspect"] == int(found.suspect.sum())
        assert abs(found.expected_wrong - float(found.p_wrong.astype(float).sum())) < 1e-5
        kept, _ = found.cleaned()
        assert len(kept) == 25 - found.counts["quarantine"]


def test_collections_that_say_little_about_their_labels_are_not_changed(rows):
    X = rows[0]
    cases = {
        "every class has a single item": (X[:2], ["a", "b"]),
        "all items are identical": (np.ones((8, 4), "f4"), ["a", "b"] * 4),
        "contain the same items": (np.vstack([X[:6], X[:6], X[10:16]]), ["a"] * 6 + ["b"] * 6 + ["c"] * 6),
    }
    for warning, (features, labels) in cases.items():
        found = ts.audit(features, np.array(labels))
        assert any(warning in text for text in found.warnings), found.warnings
        assert found.counts["relabel"] == 0, warning
    many = ts.audit(np.random.default_rng(0).normal(size=(10_000, 4)).astype("f4"), np.arange(10_000))
    assert many.counts["classes"] == 10_000 and many.counts["relabel"] == 0


def test_an_audit_is_a_data_frame_a_dictionary_and_a_page(rows):
    pandas = pytest.importorskip("pandas")
    X, y, _ = rows
    items = [f"photo {row}.jpg" for row in range(25)]
    found = ts.audit(X, NAMES[y], items=items, pictures=[np.full((8, 8, 3), 10 * row, np.uint8) for row in range(25)])
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 25
    assert frame["suggested"][3] == found.suggested[3]
    assert found.to_dict()["items"][3]["item"] == "photo 3.jpg"
    assert found.to_dict() == json.loads(found.to_json())
    page = found._repr_html_()
    assert page.startswith("<iframe") and page.count("data:image/png;base64") >= 25
    assert "<script" in found.to_html() and "ant" in str(found)


def thumbnail(picture):
    """The pixels of the image that a report shows."""
    from PIL import Image

    from trueshot._pictures import thumbnails

    (uri,) = thumbnails([picture])
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


def file_of(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_images_of_pillow_of_every_mode_are_shown_in_their_colours():
    Image = pytest.importorskip("PIL.Image")
    red = Image.new("RGB", (6, 4), (255, 0, 0))
    for mode in ("P", "CMYK", "RGBA", "YCbCr"):
        shown = thumbnail(red.convert(mode))
        assert shown.shape == (4, 6, 3) and np.allclose(shown[0, 0], (255, 0, 0), atol=5), mode
    for mode in ("L", "LA", "1"):
        assert (thumbnail(Image.new(mode, (6, 4), 255 if mode != "LA" else (255, 255))) == 255).all(), mode
    assert (thumbnail(Image.new("RGBA", (6, 4), (0, 0, 0, 0))) == 255).all(), "transparent pixels are white"
    assert (thumbnail(Image.new("LA", (6, 4), (0, 0))) == 255).all()
    assert (thumbnail(Image.fromarray(np.full((4, 6), 0x8000, np.uint16))) == 0x80).all()
    assert (thumbnail(Image.fromarray(np.full((4, 6), 1.0, np.float32))) == 255).all()
    wide = Image.new("RGB", (500, 100), (250, 10, 10))
    assert thumbnail(wide).shape == (22, 112, 3) and wide.size == (500, 100)


def test_large_files_are_upright_and_small_files_that_browsers_do_not_show_are_converted():
    Image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 255, (300, 600, 3)).astype(np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn clockwise
    large = file_of(Image.fromarray(noise), "JPEG", exif=turned, quality=95)
    assert len(large) > 64 * 1024 and thumbnail(large).shape == (112, 56, 3)
    for small in (file_of(Image.new("RGB", (6, 4), (250, 10, 10)), "TIFF"), file_of(Image.new("CMYK", (6, 4)), "TIFF")):
        assert thumbnail(small).shape == (4, 6, 3)
    from trueshot._pictures import thumbnails

    assert thumbnails([b"no image", b"II*\0 damaged", None]) == [None, None, None]


def test_audits_are_pickled_and_copied(rows):
    X, y, _ = rows
    found = ts.audit(X, NAMES[y], items=[f"photo {row}" for row in range(25)], pictures=[np.zeros((4, 4, 3), np.uint8)] * 25)
    stored = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(found))))
    for again in (stored, copy.copy(found), copy.deepcopy(found)):
        assert again is not found and repr(again) == repr(found) and str(again) == str(found)
        assert again.to_json() == found.to_json() and again.to_csv() == found.to_csv()
        for name in (
            "classes", "given", "p_wrong", "p_outlier", "probabilities", "verdict", "action", "suggested", "weight", "suspect",
            "neighbours", "similarities", "ranking",
        ):  # fmt: skip
            assert np.array_equal(getattr(again, name), getattr(found, name)), name
        assert (again.counts, again.warnings, again.advice) == (found.counts, found.warnings, found.advice)
        assert again.expected_wrong == found.expected_wrong and len(again) == 25
        assert all(np.array_equal(one, other) for one, other in zip(again.cleaned(), found.cleaned()))
    assert copy.deepcopy(found).to_html() == found.to_html()
    changed = copy.deepcopy(found)
    changed.p_wrong[:] = 0
    assert found.p_wrong.any()
    copy.deepcopy(stored).p_wrong[:] = 0
    assert stored.p_wrong.any()
    with pytest.raises(ValueError, match=r"no HTML report, because pickles contain no rows: call to_html\(\) before"):
        stored.to_html()
    assert stored._repr_html_().startswith("<pre>") and "ant" in stored._repr_html_()


def test_pictures_are_counted_before_the_audit(rows, monkeypatch):
    X, y, _ = rows
    found = ts.audit(X, y, pictures=(np.zeros((4, 4, 3), np.uint8) for _ in range(25)))
    assert found.to_html().count("data:image/png") >= 25 and found.to_html() == found.to_html()
    monkeypatch.setattr("trueshot._audit._native", None)
    with pytest.raises(ValueError, match="25 rows but 3 pictures"):
        ts.audit(X, y, pictures=[None] * 3)


def test_labels_keep_their_type(rows):
    X, y, truth = rows
    assert ts.audit(X, y).suggested[3] == truth[3]
    assert ts.audit(X, y.astype(float)).suggested[3] == float(truth[3])
    assert ts.audit(X, NAMES[y].astype("S3")).suggested[3] == bytes(NAMES[truth[3]], "ascii")
    assert ts.audit(X, NAMES[y].astype(object)).suggested[3] == NAMES[truth[3]]
    pandas = pytest.importorskip("pandas")
    assert ts.audit(pandas.DataFrame(X), pandas.Series(NAMES[y]).astype("category")).suggested[3] == NAMES[truth[3]]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.parametrize(
    ("rows", "dim", "after"), [(20_000, 256, 0.02), (20_000, 256, 0.2), (20_000, 256, 0.5), (65_000, 2, 0.2)]
)
def test_ctrl_c_ends_an_audit_while_it_runs(rows, dim, after):
    # `extend` and `map` run without Python code in between: if an audit did not stop early, its result would be in the
    # list before the interpreter handles the signal.
    program = (
        "import functools, signal, numpy as np\n"
        "from trueshot import _native\n"
        f"X = np.random.default_rng(0).normal(size=({rows}, {dim})).astype(np.float32)\n"
        f"y = np.arange({rows}) % 40\n"
        "names = [str(name) for name in range(40)]\n"
        "audit = functools.partial(_native.audit, X, y, names, None, [], None, None, 5)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        f"signal.setitimer(signal.ITIMER_REAL, {after})\n"
        "found = []\n"
        "try:\n"
        "    found.extend(map(audit, [1]))\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped with', len(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "stopped with 0\n", done.stderr
