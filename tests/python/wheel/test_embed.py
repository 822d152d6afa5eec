"""Embeddings with a PyTorch network: from folders and loaders, with a cache, and with invalid input."""

import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

COLOURS = {"blue": (30, 60, 210), "green": (40, 190, 60), "red": (220, 40, 30)}


class MeanColour(torch.nn.Module):
    """A network with six features: the mean colour times a weight, and twice that."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([weight, weight, weight]))

    def forward(self, images):
        means = images.mean(dim=(2, 3)) * self.weight
        return torch.cat([means, 2 * means], dim=1)


def to_tensor(image):
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1).float() / 255


@pytest.fixture
def photos(tmp_path):
    """Four images per colour, of different sizes."""
    random = np.random.default_rng(0)
    for label, colour in COLOURS.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.array(colour) + random.normal(0, 20, (10 + number, 12, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


def embed(model, data, **options):
    if isinstance(data, (str, os.PathLike)):
        options.setdefault("transform", to_tensor)
    return ts.embed(model, data, **options)


def images(count=6, side=4):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_a_folder_is_embedded_with_names_and_classes(photos):
    model, seen = MeanColour().train(), []
    rows = embed(model, photos, batch_size=5, progress=lambda done, total: seen.append((done, total)))
    assert rows.items[0] == "blue/0.png" and rows.items[-1] == "red/3.png" and len(rows) == 12
    assert rows.labels.tolist() == ["blue"] * 4 + ["green"] * 4 + ["red"] * 4
    assert rows.features.dtype == np.float32 and rows.features.shape == (12, 6)
    expected = to_tensor(Image.open(photos / "red" / "3.png")).mean(dim=(1, 2)).numpy()
    assert np.allclose(rows.features[-1, :3], expected, atol=1e-6) and np.allclose(rows.features[-1, 3:], 2 * expected)
    assert seen == [(5, 12), (10, 12), (12, 12)]
    assert rows.model_name == "MeanColour" and rows.backbone == f"MeanColour (torch, {rows.model_hash})"
    assert model.training and not torch.is_inference_mode_enabled(), "the mode of the model is restored"
    assert np.array_equal(embed(model, str(photos), threads=1, batch_size=12).features, rows.features)


def test_dropout_is_off_and_frozen_layers_stay_frozen():
    frozen = torch.nn.BatchNorm2d(3).eval()
    model = torch.nn.Sequential(frozen, torch.nn.Dropout(0.9), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model.train()
    frozen.eval()
    assert np.array_equal(ts.embed(model, images()).features, ts.embed(model, images()).features)
    assert model.training and not frozen.training and int(frozen.num_batches_tracked) == 0


def test_classes_and_skipped_files_are_those_of_the_command_line(photos, command, tmp_path):
    (photos / "red" / "notes.txt").write_text("about red")
    (photos / "red" / "broken.png").write_bytes((photos / "red" / "0.png").read_bytes()[:60])
    (photos / "red" / "empty.jpg").write_bytes(b"")
    (photos / "root.png").write_bytes((photos / "red" / "0.png").read_bytes())
    (photos / ".hidden").mkdir()
    (photos / "deep" / "er").mkdir(parents=True)
    (photos / "deep" / "er" / "1.PNG").write_bytes((photos / "red" / "0.png").read_bytes())
    skipped = tmp_path / "skipped.csv"
    command("embed", photos, "-o", tmp_path / "rows.safetensors", "--no-cache", "--skipped", skipped)
    theirs = ts.Embeddings.load(tmp_path / "rows.safetensors")
    with pytest.warns(UserWarning, match="4 files were skipped"):
        ours = embed(MeanColour(), photos)
    assert ours.items == theirs.items and ours.labels.tolist() == theirs.labels.tolist()
    assert "deep/er" in ours.classes
    listed = skipped.read_text()
    assert len(ours.skipped) == 4 and all(item in listed for item, _ in ours.skipped)
    assert dict(ours.skipped)["red/empty.jpg"] == "empty file" and dict(ours.skipped)["root.png"] == "not in a class folder"


def test_the_folders_that_all_images_share_are_not_part_of_the_class(photos):
    rows = embed(MeanColour(), photos.parent)
    assert rows.classes.tolist() == ["blue", "green", "red"] and rows.items[0] == "photos/blue/0.png"


def test_a_folder_without_class_folders_has_no_labels(photos):
    rows = embed(MeanColour(), photos / "red")
    assert rows.labels is None and rows.items == ["0.png", "1.png", "2.png", "3.png"]
    clf = ts.FewShotClassifier("protonet").fit(embed(MeanColour(), photos))
    assert clf.predict(rows).tolist() == ["red"] * 4


def test_transparent_pixels_are_white_and_16_bits_are_scaled(photos):
    (photos / "odd").mkdir()
    Image.fromarray(np.zeros((9, 9, 4), np.uint8)).save(photos / "odd" / "1.png")
    Image.fromarray(np.full((9, 9), 0x8000, np.uint16)).save(photos / "odd" / "2.png")
    rows = embed(MeanColour(), photos)
    assert np.allclose(rows.features[rows.labels == "odd", :3], [[1, 1, 1], [128 / 255] * 3], atol=1e-6)


def test_loaders_data_sets_and_tensors_are_embedded():
    data, labels = images(), torch.arange(6) % 3
    pairs = torch.utils.data.TensorDataset(data, labels)
    expected = MeanColour()(data).detach().numpy()
    for given in (torch.utils.data.DataLoader(pairs, batch_size=4), pairs, [(data, labels)], [[data.numpy(), labels.tolist()]]):
        rows = ts.embed(MeanColour(), given, batch_size=2)
        assert np.allclose(rows.features, expected) and rows.labels.tolist() == [0, 1, 2, 0, 1, 2] and rows.items is None
    named = ts.embed(MeanColour(), pairs, classes=["ant", "bee", "cow"])
    assert named.labels.tolist() == ["ant", "bee", "cow"] * 2
    texts = ts.embed(MeanColour(), [(data[:3], ["a", "b", "c"]), (data[3:], ("a", "b", "c"))])
    assert texts.labels.tolist() == ["a", "b", "c"] * 2
    for unlabelled in (data, data.numpy(), [data], torch.utils.data.TensorDataset(data), (part for part in data.split(2))):
        rows = ts.embed(MeanColour(), unlabelled, batch_size=4)
        assert rows.labels is None and np.allclose(rows.features, expected)


class Files(torch.utils.data.Dataset):
    """The images of a folder, as ImageFolder of torchvision gives them."""

    classes = list(COLOURS)

    def __init__(self, folder):
        self.root = str(folder)
        self.samples = [(str(path), kind) for kind, name in enumerate(COLOURS) for path in sorted((folder / name).iterdir())]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        path, kind = self.samples[row]
        return to_tensor(Image.open(path)), kind


def test_a_data_set_of_files_gives_names_and_classes(photos):
    ours, rows = ts.embed(MeanColour(), Files(photos)), embed(MeanColour(), photos)
    assert ours.items == rows.items and ours.labels.tolist() == rows.labels.tolist() and ours.folder == rows.folder
    mixed = ts.embed(MeanColour(), torch.utils.data.DataLoader(Files(photos), batch_size=3, shuffle=True))
    assert mixed.items is None and sorted(mixed.labels) == sorted(rows.labels)


def test_rows_in_the_order_of_a_batch_sampler_have_no_names(photos):
    backwards = list(range(11, -1, -1))
    batches = [backwards[:5], backwards[5:]]
    of_a_sampler = torch.utils.data.BatchSampler(backwards, batch_size=5, drop_last=False)
    for batch_sampler in (batches, of_a_sampler):
        rows = ts.embed(MeanColour(), torch.utils.data.DataLoader(Files(photos), batch_sampler=batch_sampler))
        assert rows.labels.tolist() == ["red"] * 4 + ["green"] * 4 + ["blue"] * 4 and rows.items is None


def test_audit_evaluation_and_estimators_take_embeddings():
    X, y, _ = support_set(shots=12)
    rows = ts.Embeddings(X, y, items=[f"{row}.png" for row in range(len(X))])
    assert ts.audit(rows).to_json() == ts.audit(X, y, items=rows.items).to_json()
    assert ts.audit(rows, y[::-1]).to_dict()["items"][0]["given"] == str(y[-1])
    options = {"methods": ["protonet", "median"], "episodes": 20, "ways": 3, "shots": 2, "queries": 2, "noise": {"symmetric": 0}}
    assert ts.evaluate(rows, **options).to_json() == ts.evaluate(X, y, items=rows.items, **options).to_json()
    outlier = {**options, "noise": {"outlier": 0.5}, "outliers": rows}
    assert ts.evaluate(X, y, **outlier).to_json() == ts.evaluate(X, y, **{**outlier, "outliers": (X, y)}).to_json()
    episode = ts.sample_episodes(rows, ways=3, shots=2, queries=2)[0]
    assert np.array_equal(episode.queries, ts.sample_episodes(X, y, ways=3, shots=2, queries=2)[0].queries)
    clf = ts.FewShotClassifier("median").fit(rows)
    assert np.array_equal(clf.predict(rows), ts.FewShotClassifier("median").fit(X, y).predict(X))
    assert np.array_equal(ts.LabelAuditor().fit(rows).labels_, ts.LabelAuditor().fit(X, y).labels_)
    assert rows[:4].items == ["0.png", "1.png", "2.png", "3.png"] and len(rows[y == 2]) == (y == 2).sum()


def test_a_head_can_be_trained_on_embeddings(tmp_path):
    X, y, _ = support_set(ways=8, shots=40)
    small = {"options": {"episodes": {"per_step": 2}, "model": {"layers": 1}}, "device": "cpu"}
    ts.train("relabel", ts.Embeddings(X, y), tmp_path / "a.safetensors", steps=2, **small)
    ts.train("relabel", (X, y), tmp_path / "b.safetensors", steps=2, **small)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_reports_of_audits_show_the_images_of_a_folder(photos):
    page = ts.audit(embed(MeanColour(), photos)).to_html()
    assert page.count("data:image/png;base64,") >= 12


def test_saved_embeddings_are_read_by_the_command_line_and_back(photos, command, tmp_path):
    rows, file = embed(MeanColour(), photos, name="colours"), tmp_path / "rows.safetensors"
    rows.save(file)
    shown = json.loads(command("inspect", file, "--format", "json"))
    assert shown["backbone"] == f"colours (torch, {rows.model_hash})"
    assert (shown["rows"], shown["dim"]) == (12, 6) and len(shown["classes"]) == 3
    again = ts.Embeddings.load(file)
    assert np.array_equal(again.features, rows.features) and again.labels.tolist() == rows.labels.tolist()
    assert again.items == rows.items and again.model_hash == rows.model_hash and again.model_name == "colours"
    assert command("audit", file, "--format", "json") == ts.audit(rows).to_json()


def test_numbers_as_labels_are_numbers_again_and_halves_stay_halves(tmp_path):
    X, y, _ = support_set(ways=12)
    ts.Embeddings(X.astype(np.float16), y).save(tmp_path / "rows.safetensors")
    again = ts.Embeddings.load(tmp_path / "rows.safetensors")
    assert again.labels.dtype.kind == "i" and np.array_equal(again.labels, y) and again.items is None
    assert again.features.dtype == np.float16 and np.array_equal(again.features, X.astype(np.float16))
    np.savez(tmp_path / "other.npz", features=X, labels=np.array([f"c{label:02}" for label in y]))
    assert ts.Embeddings.load(tmp_path / "other.npz").labels[0] == f"c{y[0]:02}"


def test_embeddings_that_cannot_be_saved_or_loaded_say_why(tmp_path):
    rows = ts.Embeddings(np.eye(3))
    with pytest.raises(ValueError, match=r"without labels cannot be saved: add labels with with_labels\(y\)"):
        rows.save(tmp_path / "rows.safetensors")
    with pytest.raises(ValueError, match="must end in .safetensors"):
        rows.with_labels([0, 1, 2]).save(tmp_path / "rows.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ts.Embeddings.load(tmp_path / "nowhere.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not a file of this kind")
    with pytest.raises(ValueError, match="bad.safetensors"):
        ts.Embeddings.load(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="row 1, column 1 is NaN"):
        ts.Embeddings(np.diag([1, np.nan]), [0, 1]).save(tmp_path / "rows.safetensors")
    assert not (tmp_path / "rows.safetensors").exists()
    for wrong, part in [({"labels": [1, 2]}, "3 rows of features, 2 labels"), ({"items": ["a"]}, "3 rows but 1 items")]:
        with pytest.raises(ValueError, match=part):
            ts.Embeddings(np.eye(3), **wrong)
    with pytest.raises(TypeError, match="a slice, a mask or a list"):
        rows[0]


def test_rows_without_labels_are_refused_where_labels_are_needed():
    rows = ts.embed(MeanColour(), images())
    for use in (ts.audit, ts.evaluate, ts.sample_episodes, ts.FewShotClassifier().fit, ts.LabelAuditor().fit):
        with pytest.raises(ValueError, match="embeddings without labels: give y too"):
            use(rows)
    assert len(ts.audit(rows, [0, 0, 0, 1, 1, 1])) == 6


def test_the_hash_depends_on_weights_and_settings_and_on_nothing_else():
    def hash_of(model):
        return ts.embed(model, images()).model_hash

    flat = torch.nn.Flatten()
    assert hash_of(MeanColour()) == hash_of(MeanColour().train()) == hash_of(torch.compile(MeanColour(), backend="eager"))
    others = [MeanColour(2.0), MeanColour().double(), flat, torch.nn.Sequential(torch.nn.ReLU(), flat), torch.nn.Sequential(flat)]
    with_setting = MeanColour()
    with_setting.power = 3
    hashes = [hash_of(model) for model in (MeanColour(), *others, with_setting)]
    assert len(set(hashes)) == len(hashes)
    program = "import test_embed as t, trueshot as ts; print(ts.embed(t.MeanColour(), t.images()).model_hash)"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout.strip() == hashes[0], done.stderr


# The sizes of the batches that `Counted` got. An attribute of the class would be part of the key of a cache.
BATCH_SIZES = []


class Counted(MeanColour):
    """Records the size of every batch in BATCH_SIZES."""

    def forward(self, images):
        BATCH_SIZES.append(len(images))
        return super().forward(images)


def calls(*arguments, **options):
    """The number of calls of the network, and the rows."""
    before = len(BATCH_SIZES)
    rows = embed(*arguments, **options)
    return len(BATCH_SIZES) - before, rows


def test_the_cache_is_used_for_the_same_network_and_images_only(photos, tmp_path):
    cache = {"cache": tmp_path / "cache"}
    first, rows = calls(Counted(), photos, **cache)
    second, again = calls(Counted(), photos, **cache)
    assert (first, second) == (1, 0) and np.array_equal(rows.features, again.features)
    assert (again.items, again.labels.tolist(), again.backbone) == (rows.items, rows.labels.tolist(), rows.backbone)
    assert calls(Counted(2.0), photos, **cache)[0] == 1, "other weights"
    assert calls(Counted(), photos, **cache, dtype="bfloat16")[0] == 1, "another precision"
    assert calls(Counted(), photos, **cache, transform=lambda image: to_tensor(image.rotate(90)))[0] == 1, "another transform"
    (photos / "red" / "0.png").write_bytes((photos / "blue" / "0.png").read_bytes())
    changed, rows = calls(Counted(), photos, **cache)
    assert changed == 1 and np.array_equal(rows.features[8], rows.features[0]), "other contents of the same name"


def test_code_that_changed_is_not_served_from_the_cache(tmp_path):
    def model(power):
        space = {"torch": torch}
        code = f"class Net(torch.nn.Module):\n    def forward(self, images):\n        return images.mean((2, 3)) ** {power}\n"
        exec(code, space)
        return space["Net"]()

    cache = {"cache": tmp_path, "cache_name": "noise"}
    assert model(2).__class__.__name__ == model(3).__class__.__name__
    assert not np.allclose(ts.embed(model(2), images(), **cache).features, ts.embed(model(3), images(), **cache).features)
    assert len(list(tmp_path.iterdir())) == 2 and ts.embed(model(2), images(), **cache) and len(list(tmp_path.iterdir())) == 2


def made(code, **names):
    """The object `made` that a program defines; calls with the same code give objects that only differ in identity."""
    space = {"torch": torch, "functools": functools, "to_tensor": to_tensor, **names}
    exec(code, space)
    return space["made"]


class Compose:
    """Transforms one after the other, as in torchvision."""

    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


TRANSFORMS = {
    "a function": "prepare = lambda rows: rows / {0}\ntable = {{'prepare': [prepare]}}\nmade = to_call(table)",
    "an own class": "class Own:\n    def __call__(self, rows):\n        return rows / {0}\nmade = Own()",
    "an inherited method": "class Base:\n    def __call__(self, rows):\n        return rows / {0}\n"
    "class Own(Base): pass\nmade = Own()",
    "a setting": "class Own:\n    def __init__(self):\n        self.by = {0}\n    def __call__(self, rows):\n"
    "        return rows / self.by\nmade = Own()",
    "functools.partial": "made = functools.partial(lambda offset, rows: rows / {0} + offset, 1)",
    "an argument of functools.partial": "made = functools.partial(lambda by, rows: rows / by, {0})",
}


def to_call(table):
    """A function that captures a dictionary of lists of functions."""
    return lambda rows: table["prepare"][0](rows)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_that_changed_inside_others_is_not_served_from_the_cache(name, photos, tmp_path):
    def features(by):
        transform = Compose(Compose(to_tensor), Compose(Compose(made(TRANSFORMS[name].format(by), to_call=to_call))))
        return embed(MeanColour(), photos, transform=transform, cache=tmp_path / "cache").features

    assert not np.allclose(features(2), features(3))
    assert np.array_equal(features(2), features(2)) and len(list((tmp_path / "cache").iterdir())) == 2


INIT = "def __init__(self):\n        super().__init__()\n        "
# Code before the class, the result of `forward`, and a member of the class.
NETWORKS = {
    "a base class": ("class Base(torch.nn.Module):\n    def of(self, rows): return rows * {0}\n", "self.of(rows)", ""),
    "a static method": ("", "self.of(rows)", "of = staticmethod(lambda rows: rows * {0})"),
    "a class method": ("", "self.of(rows)", "of = classmethod(lambda kind, rows: rows * {0})"),
    "a property": ("", "self.scale * rows", "scale = property(lambda self: {0})"),
    "a class attribute": ("", "self.scale * rows", "scale = {0}"),
    "a private attribute": ("", "self._scale * rows", INIT + "self._scale = {0}"),
    "a list": ("", "self.scales[1] * rows", INIT + "self.scales = [1, {0}]"),
    "a tensor": ("", "self.scale * rows", INIT + "self.scale = torch.tensor([{0}.0])"),
    "a buffer": (
        "",
        "self.scale * rows",
        INIT + "self.register_buffer('scale', torch.tensor([{0}.0]), persistent=False)",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_changed_outside_its_weights_is_not_served_from_the_cache(name, tmp_path):
    before, result, member = NETWORKS[name]

    def features(scale):
        base = "Base" if before else "torch.nn.Module"
        code = f"{before}class Net({base}):\n    {member or 'pass'}\n    def forward(self, images):\n"
        code += f"        rows = images.mean((2, 3))\n        return {result}\nmade = Net()"
        return ts.embed(made(code.replace("{0}", str(scale))), images(), cache=tmp_path, cache_name="noise").features

    assert not np.allclose(features(2), features(3))
    assert np.array_equal(features(2), features(2)) and len(list(tmp_path.iterdir())) == 2


def test_the_key_of_a_cache_is_the_same_in_every_process(tmp_path):
    program = """
import sys, test_embed as t
code = '''
class Own(torch.nn.Module):
    names = {"a", "b", "c"}
    def forward(self, images):
        return images.mean((2, 3)) if "a" in {"a", "b"} else images
made = Own()
made.table = {"of": made, "layers": [torch.nn.Linear(2, 2)], "names": {"x", "y", "z"}}
torch.nn.init.ones_(made.table["layers"][0].weight), torch.nn.init.ones_(made.table["layers"][0].bias)
'''
t.ts.embed(t.made(code), t.images(), cache=sys.argv[1], cache_name="noise")
"""
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", program, tmp_path]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_a_named_cache_serves_loaders_and_notices_another_length(tmp_path):
    cache = {"cache": tmp_path / "cache", "cache_name": "noise"}
    labelled = torch.utils.data.TensorDataset(images(), torch.arange(6))
    assert calls(Counted(), labelled, **cache)[0] == 1
    count, rows = calls(Counted(), labelled, **cache)
    assert count == 0 and rows.labels.tolist() == [0, 1, 2, 3, 4, 5]
    longer = torch.utils.data.TensorDataset(images(7), torch.arange(7))
    assert calls(Counted(), longer, **cache)[0] == 1 and len(calls(Counted(), longer, **cache)[1]) == 7
    assert calls(lambda batch: batch.mean((2, 3)), images(), **cache)[1].backbone == "<lambda> (torch)"


def test_a_named_cache_depends_on_the_transform_and_the_precision(photos, tmp_path):
    def dark(image):
        return to_tensor(image) / 2

    def function(batch):
        return batch.mean((2, 3))

    cache = {"cache": tmp_path / "cache", "cache_name": "photos"}
    for model in (MeanColour(), function):
        bright = embed(model, photos, **cache).features
        assert np.allclose(embed(model, photos, transform=dark, **cache).features, bright / 2, atol=1e-6)
    before = len(list((tmp_path / "cache").iterdir()))
    embed(function, photos, dtype="bfloat16", **cache)
    assert len(list((tmp_path / "cache").iterdir())) == before + 1


def test_loaders_that_skip_images_are_cached(tmp_path):
    data = torch.utils.data.TensorDataset(images(7), torch.arange(7))
    loaders = {
        "drop_last": {"batch_size": 3, "drop_last": True},
        "sampler": {"batch_size": 3, "sampler": torch.utils.data.SubsetRandomSampler([4, 5])},
        "batches": {"batch_sampler": [[0, 1], [6]]},
        "own batches": {"batch_sampler": torch.utils.data.BatchSampler([0, 1, 2, 6], 3, drop_last=True)},
    }
    totals = []
    for name, options in loaders.items():
        loader = torch.utils.data.DataLoader(data, **options)
        cache = {"cache": tmp_path, "cache_name": name}
        count, rows = calls(Counted(), loader, progress=lambda done, total: totals.append((done, total)), **cache)
        again, same = calls(Counted(), loader, **cache)
        assert (count > 0, again) == (True, 0) and same.labels.tolist() == rows.labels.tolist(), name
    assert totals == [(3, 6), (6, 6), (2, 2), (2, 3), (3, 3), (3, 3)]
    smaller = torch.utils.data.DataLoader(data, batch_size=3, sampler=torch.utils.data.SubsetRandomSampler([4]))
    assert len(calls(Counted(), smaller, cache=tmp_path, cache_name="sampler")[1]) == 1


def test_a_damaged_cache_file_is_computed_again(photos, tmp_path):
    _, rows = calls(Counted(), photos, cache=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:200] + b"\xff" * 40 + whole[240:]):
        file.write_bytes(damaged)
        count, again = calls(Counted(), photos, cache=tmp_path / "cache")
        assert count == 1 and np.array_equal(again.features, rows.features)
        assert file.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_killed_run_leaves_no_broken_cache_file(photos, tmp_path):
    program = """
import os, signal, sys, numpy, test_embed as t
whole = numpy.savez
def half(file, **arrays):
    whole(file, **arrays)
    file.truncate(100)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
numpy.savez = half
t.embed(t.Counted(), sys.argv[1], cache=sys.argv[2])
"""
    command = [sys.executable, "-c", program, photos, tmp_path / "cache"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = (tmp_path / "cache").iterdir()
    assert left.stat().st_size == 100 and left.name.startswith(".") and not left.name.endswith(".npz")
    assert calls(Counted(), photos, cache=tmp_path / "cache")[0] == 1
    assert calls(Counted(), photos, cache=tmp_path / "cache")[0] == 0


def test_wrong_settings_of_the_cache_say_what_to_do(photos, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="which is a file; give a folder"):
        embed(MeanColour(), photos, cache=tmp_path / "file")
    with pytest.raises(ValueError, match="images of a loader are only known after they are loaded: give cache_name"):
        ts.embed(MeanColour(), images(), cache=tmp_path)
    with pytest.raises(ValueError, match="a function has no weights that identify it: give cache_name"):
        embed(lambda batch: batch.mean((2, 3)), photos, cache=tmp_path)
    with pytest.raises(ValueError, match="cache_name is given without cache"):
        ts.embed(MeanColour(), images(), cache_name="a")


def test_half_precision_and_bfloat16_are_computed():
    single = ts.embed(MeanColour(), images()).features
    conv = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    assert ts.embed(conv, images(), dtype="bfloat16").features.dtype == np.float32
    half = ts.embed(MeanColour().half(), images())
    assert half.features.dtype == np.float16 and np.allclose(half.features, single, atol=1e-2)
    assert ts.embed(MeanColour().double(), images(), dtype=torch.float64).features.dtype == np.float32
    with pytest.raises(ValueError, match=r"weights of the model are torch.float16, but dtype is torch.float32: convert it"):
        ts.embed(MeanColour().half(), images(), dtype="float32")
    for wrong in ("int8", "float17", 16):
        with pytest.raises(ValueError, match="dtype is .* allowed: 'float32'"):
            ts.embed(MeanColour(), images(), dtype=wrong)


def test_feature_maps_are_averaged_only_if_asked_for():
    maps = torch.nn.Conv2d(3, 5, 1)
    with pytest.raises(ValueError, match=r"shape \[6, 5, 4, 4\]; expected \[images, features\]: pool='mean' averages"):
        ts.embed(maps, images())
    rows = ts.embed(maps, images(), pool="mean")
    assert np.allclose(rows.features, maps(images()).mean((2, 3)).detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="pool is 'max'; allowed: None, 'mean'"):
        ts.embed(maps, images(), pool="max")


def output(function):
    return lambda batch: function(batch.mean((2, 3)))


OUTPUTS = {
    "one axis": (lambda rows: rows[:, 0], r"shape \[4\]; expected \[images, features\]"),
    "tokens": (lambda rows: rows[:, None], r"shape \[4, 1, 3\].*tokens"),
    "a tuple": (lambda rows: (rows, None), r"returned a tuple with 0: tensor \[4, 3\], 1: NoneType: choose .* output=0"),
    "a dictionary": (lambda rows: {"x": rows}, r"returned a dict with 'x': tensor \[4, 3\]: choose .* output='x'"),
    "tokens and rows": (lambda rows: {"tokens": rows[:, None], "rows": rows}, "choose the features with output='rows'"),
    "an array": (lambda rows: rows.numpy(), "returned an object of type ndarray; expected a tensor"),
    "nothing": (lambda rows: None, "returned an object of type NoneType; expected a tensor"),
    "too few rows": (lambda rows: rows[:3], r"returned 3 rows for 4 images \(batch 1\)"),
    "integers": (lambda rows: rows.long(), "returned torch.int64; features are floats"),
    "another width": (lambda rows: rows[:, : len(rows)], "2 features per image in batch 2, but 3 before"),
    "NaN": (lambda rows: rows / 0 * 0, r"returned NaN for row 0 \(4 of 4 rows of its batch\)"),
    "infinity": (lambda rows: rows / torch.tensor([1.0, 0, 1]), "returned infinity for row 0"),
    "no features": (lambda rows: rows[:, :0], "returned no features for the images of batch 1"),
    "an error of Python": (lambda rows: {}["head"], r"failed on batch 1, images of shape \[4, 3, 4, 4\], torch.float32: KeyError: 'head'"),
    "an error": (lambda rows: rows @ rows, r"failed on batch 1, images of shape \[4, 3, 4, 4\], torch.float32: .*mat1 and mat2"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_invalid_outputs_are_refused(name):
    function, message = OUTPUTS[name]
    with pytest.raises((ValueError, RuntimeError), match=message):
        ts.embed(output(function), images(), batch_size=4)


def test_an_output_is_chosen_by_index_or_key():
    expected = images().mean((2, 3)).numpy()
    for function, key in ((lambda rows: (rows + 1, rows), 1), (lambda rows: {"a": None, "b": rows}, "b")):
        assert np.allclose(ts.embed(output(function), images(), output=key).features, expected)
    with pytest.raises(ValueError, match=r"with 0: tensor \[6, 3\], but no tensor 4"):
        ts.embed(output(lambda rows: (rows,)), images(), output=4)
    with pytest.raises(ValueError, match="output is 0, but the network returns a single tensor"):
        ts.embed(MeanColour(), images(), output=0)


def test_rows_that_are_not_finite_name_the_image_and_halves_get_a_hint(photos):
    def spoiled(batch):
        rows = batch.mean((2, 3))
        rows[1] = float("nan")
        return rows

    with pytest.raises(ValueError, match="NaN for 'blue/1.png'"):
        embed(spoiled, photos)
    with pytest.raises(ValueError, match="no numbers above 65,504: try dtype='bfloat16'"):
        ts.embed(MeanColour().half(), images() * 60_000)


def test_a_model_on_another_device_is_refused():
    model = MeanColour().to("meta")
    for device in ("cpu", "meta", None):
        with pytest.raises(ValueError, match="the model is on the device meta, where weights have no values: create it on"):
            ts.embed(model, images(), device=device)
    with pytest.raises(ValueError, match="returned a tensor on the device meta, which has no values"):
        ts.embed(output(lambda rows: rows.to("meta")), images())
    with pytest.raises(ValueError, match=r"the model is on cpu, but device is 'cuda:1': move it with model.to\('cuda:1'\)"):
        ts.embed(MeanColour(), images(), device="cuda:1")
    with pytest.raises(ValueError, match="device is 'gpu'"):
        ts.embed(MeanColour(), images(), device="gpu")
    assert len(ts.embed(MeanColour(), images(), device=torch.device("cpu"))) == 6


def test_things_that_are_not_models_are_refused():
    with pytest.raises(TypeError, match=r"got str: create it first, such as timm.create_model\('resnet18'"):
        ts.embed("resnet18", images())
    with pytest.raises(TypeError, match="a torch.nn.Module or a function of a batch of images, got int"):
        ts.embed(3, images())
    with pytest.raises(TypeError, match=r"model is the class MeanColour; give an object, such as MeanColour\(\)"):
        ts.embed(MeanColour, images())
    with pytest.raises(ValueError, match="the lazy layer with '1.weight' has no weights yet: call the model on a batch"):
        ts.embed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4)), images())


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        embed(MeanColour(), tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no images in"):
        embed(MeanColour(), tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("text")
    with pytest.raises(ValueError, match="no images in .*; the first file skipped: a/notes.txt: not an image by"):
        embed(MeanColour(), tmp_path)
    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        embed(MeanColour(), tmp_path / "a" / "notes.txt")
    (tmp_path / "a" / "1.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="no image in .* can be read: \n  a/1.jpg: unknown image format"):
        embed(MeanColour(), tmp_path)


def test_folders_of_splits_are_refused(photos, tmp_path):
    for split in ("train", "test"):
        os.makedirs(tmp_path / "data" / split)
        os.symlink(photos / "red", tmp_path / "data" / split / "red")
    with pytest.raises(ValueError, match="contains test, train, which are splits rather than classes: give one of them"):
        embed(MeanColour(), tmp_path / "data")
    assert embed(MeanColour(), tmp_path / "data" / "test").classes.tolist() == ["red"]


def test_unreadable_images_are_listed_or_refused(photos, tmp_path):
    for number in range(7):
        (photos / "red" / f"bad{number}.jpg").write_bytes(b"\xff\xd8 damaged")
    with pytest.warns(UserWarning, match="7 files were skipped: \n  red/bad0.jpg: .*(?s:.*)\n  and 2 more"):
        rows = embed(MeanColour(), photos, cache=tmp_path / "cache", batch_size=3)
    assert len(rows) == 12 and len(rows.skipped) == 7 and len(rows.labels) == 12
    with pytest.warns(UserWarning, match="7 files were skipped"):
        assert embed(MeanColour(), photos, cache=tmp_path / "cache").skipped == rows.skipped
    with pytest.raises(ValueError, match="7 images cannot be read: \n  red/bad0.jpg"):
        embed(MeanColour(), photos, cache=tmp_path / "cache", unreadable="raise")
    with pytest.raises(ValueError, match="unreadable is 'ignore'; allowed: 'skip', 'raise'"):
        embed(MeanColour(), photos, unreadable="ignore")


def test_a_folder_without_permission_is_skipped_with_a_message(photos, monkeypatch):
    listed = os.scandir

    def scandir(folder):
        if os.path.basename(folder) == "red":
            raise PermissionError(13, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.warns(UserWarning, match="1 file was skipped: \n  red: a folder that cannot be read"):
        rows = embed(MeanColour(), photos)
    assert rows.skipped == [("red", "a folder that cannot be read: Permission denied (os error 13)")]
    assert rows.classes.tolist() == ["blue", "green"]
    with pytest.raises(PermissionError):
        embed(MeanColour(), photos / "red")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders on this system")
def test_pipes_are_skipped_and_not_opened(photos, tmp_path):
    os.mkfifo(photos / "red" / "pipe.png")
    program = "import sys, test_embed as t; print(t.embed(t.MeanColour(), sys.argv[1], cache=sys.argv[2]).skipped)"
    command = [sys.executable, "-W", "ignore", "-c", program, photos, tmp_path / "cache"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[('red/pipe.png', 'cannot be read: not a regular file')]", done.stderr


def test_transforms_that_do_not_fit_say_what_to_do(photos):
    with pytest.raises(ValueError, match="transform is needed to embed a folder: MeanColour does not say"):
        ts.embed(MeanColour(), photos)
    with pytest.raises(TypeError, match="transform returned an object of type Image for 'blue/0.png'; expected a tensor: end it with ToTensor"):
        embed(MeanColour(), photos, transform=lambda image: image)
    with pytest.raises(ValueError, match=r"different shapes: \[10, 12, 3\] of 'blue/0.png', \[11, 12, 3\] of 'blue/1.png'"):
        embed(MeanColour(), photos, transform=np.array, batch_size=2)
    with pytest.raises(ValueError, match="transform failed on 'blue/0.png': ZeroDivisionError"):
        embed(MeanColour(), photos, transform=lambda image: 1 / 0)
    with pytest.raises(TypeError, match="transform must be a function from a Pillow image to a tensor, got int"):
        embed(MeanColour(), photos, transform=3)
    with pytest.raises(ValueError, match="transform is for folders"):
        ts.embed(MeanColour(), images(), transform=to_tensor)
    with pytest.raises(ValueError, match="classes is for loaders"):
        embed(MeanColour(), photos, classes=["a"])


BATCHES = {
    "three parts": ([(images(), [0] * 6, 1)], TypeError, r"batch 1 of the loader is a tuple of tensor \[6, 3, 4, 4\], list, int"),
    "a dictionary": ([{"image": images()}], TypeError, "a dict with 'image'; expected a tensor of images, or a pair"),
    "a path": (["a.png"], TypeError, "batch 1 of the loader is a str"),
    "no images": ([images()[:0]], ValueError, "batch 1 of the loader has no images"),
    "too few labels": ([(images(), [0] * 5)], ValueError, r"6 images and labels of shape \[5\]"),
    "several labels": ([(images(), torch.zeros(6, 2))], ValueError, r"6 images and labels of shape \[6, 2\]"),
    "labels of some": ([(images(), [0] * 6), images()], ValueError, "batch 2 is without labels, unlike those before"),
    "labels of others": ([images(), (images(), [0] * 6)], ValueError, "batch 2 is with labels, unlike those before"),
    "no batches": ([], ValueError, "the loader has no batches"),
    "a number": (3, TypeError, "data must be a folder, a loader, a data set or a tensor of images, got int"),
    "a scalar": (torch.tensor(3.0), ValueError, "a tensor without axes"),
    "images of whole numbers": ([(images() * 255).byte()], RuntimeError, "(?s)failed on batch 1, images .*, torch.uint8.*hint: .*divide pixels by 255"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_loaders_that_give_something_else_are_refused(name):
    data, error, message = BATCHES[name]
    with pytest.raises(error, match=message):
        ts.embed(MeanColour(), data)


def test_names_of_classes_that_do_not_fit_are_refused():
    labelled = [(images(), torch.arange(6))]
    with pytest.raises(ValueError, match="a label is 5, but classes has 2 names"):
        ts.embed(MeanColour(), labelled, classes=["a", "b"])
    with pytest.raises(ValueError, match="classes contains 'a' twice"):
        ts.embed(MeanColour(), labelled, classes=["a", "b", "a", "c", "d", "e"])
    for wrong, message in [({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"), ({"threads": 0}, "threads is 0")]:
        with pytest.raises(ValueError, match=message):
            ts.embed(MeanColour(), images(), **wrong)


def test_outputs_that_look_like_class_scores_give_a_warning():
    with pytest.warns(UserWarning, match="1000 numbers per image look like a score per class"):
        ts.embed(output(lambda rows: rows.repeat(1, 334)[:, :1000]), images())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.embed(MeanColour(), images())


def test_missing_packages_are_named():
    program = "import sys; sys.modules['{0}'] = None; import trueshot; trueshot.embed({1}, '.')"
    for module, model, message in [
        ("torch", "len", "torch is not installed, and a model of PyTorch needs it: pip install torch"),
        ("PIL", "__import__('torch').nn.Flatten()", "pillow is not installed, and it decodes the images of a folder: pip install"),
    ]:
        done = subprocess.run([sys.executable, "-c", program.format(module, model)], capture_output=True, text=True)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_timm_models_supply_their_transform(photos):
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit", num_classes=0)
    rows = ts.embed(model, photos)
    assert rows.model_name == "test_vit" and rows.features.shape == (12, model.num_features)
    config = timm.data.resolve_model_data_config(model)
    given = ts.embed(model, photos, transform=timm.data.create_transform(**config, is_training=False))
    assert np.array_equal(rows.features, given.features)


def test_open_clip_models_supply_their_transform(photos):
    open_clip = pytest.importorskip("open_clip")
    model, _, prepare = open_clip.create_model_and_transforms("RN50", force_image_size=32)
    rows = ts.embed(model, photos)
    assert np.array_equal(rows.features, ts.embed(model.encode_image, photos, transform=prepare).features)


def test_weights_of_torchvision_are_a_transform(photos):
    models = pytest.importorskip("torchvision.models")
    network, weights = models.squeezenet1_1().features, models.SqueezeNet1_1_Weights.DEFAULT
    rows = ts.embed(network, photos, transform=weights, pool="mean")
    assert rows.features.shape == (12, 512)
    assert np.array_equal(rows.features, ts.embed(network, photos, transform=weights.transforms(), pool="mean").features)
