"""Classifiers that `trueshot export` writes as ONNX models, run by onnxruntime.

Every kind of classifier and backbone is exported, and the probabilities of onnxruntime are compared with those of
`trueshot predict` on the same images. `TRUESHOT_BIN` names the binary.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

CLOSE = 1e-4
COLOURS = {"red": (220, 40, 30), "green": (40, 190, 60), "blue": (30, 60, 210)}
# One method for each way to score a row; `relabel`, the default, comes first.
METHODS = ["relabel", "protonet", "baseline++", "linear", "nearest:k=3", "matching"]


@pytest.fixture(scope="module")
def trueshot():
    path = os.environ.get("TRUESHOT_BIN")
    if not path:
        pytest.skip("TRUESHOT_BIN does not name the binary")

    def run(*arguments):
        done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Noisy stripes in three colours, six images each, in a folder per class; and a folder of new images."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(7)
    for name, colour in COLOURS.items():
        for number in range(8):
            stripes = ((np.arange(90) // (4 + number)) % 2)[None, :, None]
            pixels = np.array(colour) * (0.5 + 0.5 * stripes) + random.normal(0, 25, (70, 90, 3))
            path = folder / ("known" if number < 6 else "new") / name / f"{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    Image.fromarray(random.integers(0, 256, (70, 90, 3), np.uint8)).save(folder / "new" / "noise.png")
    return folder


def run_model(path, inputs):
    """Probabilities of all classes, of none, and the names of the classes."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    answers = session.run(["probabilities", "unknown"], {given.name: inputs})
    return *answers, json.loads(session.get_modelmeta().custom_metadata_map["classes"])


def read_image(path, preprocessing):
    size, image = preprocessing["size"], Image.open(path).convert("RGB")
    if preprocessing["colours"] == "grey":
        # These files are grey already; for colours, the weights of Pillow and trueshot differ.
        image = image.convert("L")
    if preprocessing["fit"] == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    image = image.resize((size, size), Image.Resampling[preprocessing["resampling"].upper()])
    return np.asarray(image).reshape(size, size, -1)


def compare_on_photos(trueshot, classifier, model, folder, options=(), close=CLOSE):
    metadata = onnxruntime.InferenceSession(model).get_modelmeta().custom_metadata_map
    lines = trueshot("predict", classifier, folder, "--format", "jsonl", "--all", "--no-cache", *options).splitlines()
    expected = [json.loads(line) for line in lines]
    images = np.stack([read_image(folder / line["item"], json.loads(metadata["preprocessing"])) for line in expected])
    probabilities, unknown, classes = run_model(model, images)
    assert len(expected) == 7
    np.testing.assert_allclose(unknown, [line["unknown"] for line in expected], atol=close)
    wanted = [[line["probabilities"][name] for name in classes] for line in expected]
    np.testing.assert_allclose(probabilities, wanted, atol=close)
    assert [classes[index] for index in probabilities.argmax(1)] == [line["class"] for line in expected]
    # A single image gives the same result as in a batch.
    alone, _, _ = run_model(model, images[:1])
    np.testing.assert_allclose(alone, probabilities[:1], atol=max(1e-5, close / 10))


@pytest.mark.parametrize("method", METHODS)
def test_photos_have_the_probabilities_of_predict(trueshot, photos, tmp_path, method):
    classifier, model = tmp_path / "c.safetensors", tmp_path / "c.onnx"
    size = ("--size", 96)
    trueshot("fit", photos / "known", "-m", method, "-o", classifier, "--no-cache", *size)
    trueshot("export", classifier, "-o", model, *size)
    compare_on_photos(trueshot, classifier, model, photos / "new", size)


def test_the_default_size_and_a_crop_are_exported(trueshot, photos, tmp_path):
    classifier, model = tmp_path / "c.safetensors", tmp_path / "c.onnx"
    trueshot("fit", photos / "known", "-o", classifier, "--no-cache", "--fit", "crop")
    trueshot("export", classifier, "-o", model, "--fit", "crop")
    compare_on_photos(trueshot, classifier, model, photos / "new", ("--fit", "crop"))


def test_a_conv4_is_exported_with_its_classifier(trueshot, photos, tmp_path):
    classifier, model = tmp_path / "c.safetensors", tmp_path / "c.onnx"
    for path in photos.glob("**/*.png"):
        grey = tmp_path / path.relative_to(photos)
        grey.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("L").save(grey)
    trueshot("fit", tmp_path / "known", "-o", classifier, "--backbone", "omniglot-conv4", "--no-cache")
    trueshot("export", classifier, "-o", model)
    compare_on_photos(trueshot, classifier, model, tmp_path / "new")


def test_the_same_classifier_gives_the_same_bytes(trueshot, photos, tmp_path):
    classifier = tmp_path / "c.safetensors"
    trueshot("fit", photos / "known", "-o", classifier, "--no-cache", "--backbone", "omniglot-conv4")
    for name in ["a.onnx", "b.onnx"]:
        trueshot("export", classifier, "-o", tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("method", METHODS)
def test_a_classifier_of_embeddings_is_exported_alone(trueshot, tmp_path, method):
    random = np.random.default_rng(3)
    centres = 2 * random.normal(size=(4, 20))
    labels = np.repeat(np.arange(4), 9)
    rows = (centres[labels] + random.normal(size=(36, 20))).astype(np.float32)
    np.savez(tmp_path / "rows.npz", features=rows, labels=labels)
    queries = np.concatenate([centres + random.normal(size=(4, 20)), np.zeros((1, 20)), 9 * random.normal(size=(2, 20))])
    np.savez(tmp_path / "queries.npz", features=queries.astype(np.float32), labels=np.arange(7) % 4)
    classifier, model = tmp_path / "c.safetensors", tmp_path / "c.onnx"
    trueshot("fit", tmp_path / "rows.npz", "-m", method, "-o", classifier)
    trueshot("export", classifier, "-o", model)
    probabilities, unknown, classes = run_model(model, queries.astype(np.float32))
    lines = trueshot("predict", classifier, tmp_path / "queries.npz", "--format", "jsonl", "--all").splitlines()
    expected = [json.loads(line) for line in lines]
    np.testing.assert_allclose(unknown, [line["unknown"] for line in expected], atol=CLOSE)
    wanted = [[line["probabilities"][name] for name in classes] for line in expected]
    np.testing.assert_allclose(probabilities, wanted, atol=CLOSE)


def image_model(path, opset, shape, nodes, output_shape, output="features", tensors=(), kind=TensorProto.FLOAT, **saving):
    """A model of a few nodes from `image` to an output; exported models have an input of the same name."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", kind, shape)],
        [helper.make_tensor_value_info(output, kind, output_shape)],
        list(tensors),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7), path, **saving)


def filters(dtype=np.float32):
    """Sixteen random filters of 5 x 5 pixels, which distinguish the stripes."""
    weights = np.random.default_rng(1).normal(size=(16, 3, 5, 5)).astype(dtype)
    return onnx.numpy_helper.from_array(weights, "filters")


# trueshot's runtime needs these attributes.
CONVOLUTION = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "kernel_shape": [5, 5], "group": 1}
MODELS = {
    "rows, opset 11": (11, [None, 3, 48, 48], [("Conv", ["image", "filters"], "maps", CONVOLUTION),
                       ("Relu", ["maps"], "activated", {}), ("GlobalAveragePool", ["activated"], "pooled", {}),
                       ("Flatten", ["pooled"], "features", {})], [None, 16]),
    "maps, opset 21": (21, [1, 3, 48, 48], [("Conv", ["image", "filters"], "maps", CONVOLUTION),
                       ("Relu", ["maps"], "features", {})], [1, 16, 44, 44]),
    "maps with channels last, opset 17": (17, [None, 48, 48, 3], [
        ("Transpose", ["image"], "first", {"perm": [0, 3, 1, 2]}), ("Conv", ["first", "filters"], "maps", CONVOLUTION),
        ("Relu", ["maps"], "activated", {}), ("Transpose", ["activated"], "features", {"perm": [0, 2, 3, 1]})],
        [None, 44, 44, 16]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_classifier_is_appended_to_an_onnx_backbone(trueshot, photos, tmp_path, kind):
    opset, shape, nodes, output_shape = MODELS[kind]
    nodes = [helper.make_node(name, inputs, [output], **attributes) for name, inputs, output, attributes in nodes]
    backbone, classifier, model = tmp_path / "net.onnx", tmp_path / "c.safetensors", tmp_path / "c.onnx"
    image_model(backbone, opset, shape, nodes, output_shape, tensors=[filters()])
    trueshot("fit", photos / "known", "-o", classifier, "--backbone", backbone, "--no-cache")
    trueshot("export", classifier, "-o", model, "--backbone", backbone)
    session = onnxruntime.InferenceSession(model)
    assert [output.name for output in session.get_outputs()] == ["probabilities", "unknown"]
    assert session.get_inputs()[0].type == "tensor(uint8)"
    if shape[0] == 1:
        assert session.get_inputs()[0].shape[0] == 1
        compare_one_by_one(trueshot, classifier, model, photos / "new", ("--backbone", backbone))
    else:
        compare_on_photos(trueshot, classifier, model, photos / "new", ("--backbone", backbone))


@pytest.mark.parametrize("half", [False, True])
def test_backbones_in_f16_and_with_weights_in_another_file_are_exported(trueshot, photos, tmp_path, half):
    opset, shape, nodes, output_shape = MODELS["rows, opset 11"]
    nodes = [helper.make_node(name, inputs, [output], **attributes) for name, inputs, output, attributes in nodes]
    kind, dtype = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    external = {"save_as_external_data": True, "location": "net.onnx.data", "size_threshold": 0}
    backbone, classifier, model = tmp_path / "net.onnx", tmp_path / "c.safetensors", tmp_path / "export" / "c.onnx"
    image_model(backbone, opset, shape, nodes, output_shape, tensors=[filters(dtype)], kind=kind, **external)
    assert (tmp_path / "net.onnx.data").stat().st_size >= 16 * 3 * 25 * np.dtype(dtype).itemsize
    trueshot("fit", photos / "known", "-o", classifier, "--backbone", backbone, "--no-cache")
    model.parent.mkdir()
    trueshot("export", classifier, "-o", model, "--backbone", backbone)
    # onnxruntime computes in f16, trueshot in f32.
    compare_on_photos(trueshot, classifier, model, photos / "new", ("--backbone", backbone), close=0.02 if half else CLOSE)


def compare_one_by_one(trueshot, classifier, model, folder, options):
    session = onnxruntime.InferenceSession(model)
    preprocessing = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    lines = trueshot("predict", classifier, folder, "--format", "jsonl", "--no-cache", *options).splitlines()
    assert len(lines) == 7
    for line in map(json.loads, lines):
        image = read_image(folder / line["item"], preprocessing)[None]
        probabilities, unknown = session.run(None, {session.get_inputs()[0].name: image})
        assert abs(unknown[0] - line["unknown"]) < CLOSE
        assert abs(probabilities.max() - line["probability"]) < CLOSE
        assert classes[probabilities.argmax()] == line["class"]


def test_operators_that_are_too_old_are_refused(trueshot, photos, tmp_path):
    backbone, classifier = tmp_path / "net.onnx", tmp_path / "c.safetensors"
    nodes = [helper.make_node("GlobalAveragePool", ["image"], ["p"]), helper.make_node("Flatten", ["p"], ["features"])]
    image_model(backbone, 9, [None, 3, 32, 32], nodes, [None, 3])
    trueshot("fit", photos / "known", "-o", classifier, "--backbone", backbone, "--no-cache")
    done = subprocess.run(
        [os.environ["TRUESHOT_BIN"], "export", classifier, "-o", tmp_path / "c.onnx", "--backbone", backbone],
        capture_output=True, text=True,
    )
    assert done.returncode == 1
    assert "version 9" in done.stderr and "--head-only" in done.stderr
    assert not (tmp_path / "c.onnx").exists()


def test_the_example_of_the_documentation_runs(trueshot, photos, tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "classifiers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    trueshot("fit", photos / "known", "-o", tmp_path / "c.safetensors", "--no-cache")
    trueshot("export", tmp_path / "c.safetensors", "-o", tmp_path / "clipart.onnx")
    (tmp_path / "new.png").write_bytes((photos / "new" / "green" / "green6.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/classifiers.md", "exec"), {})
    line = trueshot("predict", "c.safetensors", "new.png", "--no-cache", "--format", "jsonl")
    answer = json.loads(line)
    shown = re.fullmatch(r"(.*): (\d\.\d{3}), none of these: (\d\.\d{3})\n", capsys.readouterr().out)
    assert shown[1] == answer["class"]
    # The example prints three decimals.
    for number, name in [(shown[2], "probability"), (shown[3], "unknown")]:
        assert abs(float(number) - answer[name]) < CLOSE + 5e-4
