"""The adapter for easyfsl: it trains backbones, and gives the scores of easyfsl's own prototypical networks."""

import copy
import pickle
import random

import numpy as np
import pytest

import trueshot as ts

torch = pytest.importorskip("torch")
easyfsl = pytest.importorskip("easyfsl")
from easyfsl.methods import FewShotClassifier as EasyfslClassifier
from easyfsl.methods import PrototypicalNetworks
from easyfsl.samplers import TaskSampler
from easyfsl.utils import evaluate
from torch import nn

from trueshot.easyfsl import FewShotClassifier

TRAINABLE = ["protonet", "simpleshot", "simpleshot:centre=none:metric=euclidean", "matching", "euclidean", "absolute", "cosine:T=0.5"]


class Patterns(torch.utils.data.Dataset):
    """Noisy images of one pattern per class."""

    def __init__(self, classes=8, images=12):
        generator = torch.Generator().manual_seed(1)
        patterns = torch.randn(classes, 1, 12, 12, generator=generator)
        self.labels = [label for label in range(classes) for _ in range(images)]
        self.images = torch.stack([patterns[label] + 2 * torch.randn(1, 12, 12, generator=generator) for label in self.labels])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def get_labels(self):
        return self.labels


@pytest.fixture
def loader(monkeypatch):
    """Episodes of easyfsl's sampler, 5-way 3-shot with 4 queries per class."""
    # The sampler of easyfsl 1.5 passes an argument that newer versions of torch no longer take.
    monkeypatch.setattr(torch.utils.data.Sampler, "__init__", lambda self, data_source=None: None)
    torch.manual_seed(0)
    random.seed(0)
    images = Patterns()
    sampler = TaskSampler(images, n_way=5, n_shot=3, n_query=4, n_tasks=20)
    return torch.utils.data.DataLoader(images, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 16))


def train_epoch(model, loader, optimizer):
    losses = []
    model.train()
    for support_images, support_labels, query_images, query_labels, _ in loader:
        optimizer.zero_grad()
        model.process_support_set(support_images, support_labels)
        loss = nn.functional.cross_entropy(model(query_images), query_labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@pytest.mark.parametrize("method", TRAINABLE)
def test_episodes_train_the_backbone(method, loader):
    model = FewShotClassifier(network(), method=method)
    assert isinstance(model, EasyfslClassifier) and not model.is_transductive()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    before = evaluate(model, loader, device="cpu", use_tqdm=False)
    first = train_epoch(model, loader, optimizer)
    best = copy.deepcopy(model.state_dict())
    last = [train_epoch(model, loader, optimizer) for _ in range(3)][-1]
    assert last < 0.9 * first
    assert before < 0.9 < evaluate(model, loader, device="cpu", use_tqdm=False)
    model.load_state_dict(best)
    assert set(best) == {f"backbone.{name}" for name in network().state_dict()}


def test_the_support_set_has_gradients_too(loader):
    images, labels, queries, _, _ = next(iter(loader))
    model = FewShotClassifier(method="protonet")
    support = images.flatten(1).requires_grad_()
    model.process_support_set(support, labels)
    model(queries.flatten(1)).sum().backward()
    assert support.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_softmax": True},
        {"feature_centering": torch.full((16,), 0.3)},
        {"feature_normalization": 2.0},
        {"use_softmax": True, "feature_centering": torch.full((16,), 0.3), "feature_normalization": 1.0},
    ],
)
def test_scores_and_attributes_are_those_of_prototypical_networks(options, loader):
    backbone = network()
    theirs, ours = PrototypicalNetworks(backbone, **options), FewShotClassifier(backbone, method="protonet", **options)
    assert len(ours.prototypes) == len(ours.support_features) == len(ours.support_labels) == 0
    for images, labels, queries, _, _ in loader:
        theirs.process_support_set(images, labels)
        ours.compute_prototypes_and_store_support_set(images, labels)
        assert torch.allclose(ours(queries), theirs(queries), atol=1e-4)
        for name in ("prototypes", "support_features", "support_labels"):
            assert torch.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-4), name
        assert torch.allclose(ours.compute_features(queries), theirs.compute_features(queries))
    scores = torch.tensor([[1.0, 2.0]])
    assert torch.equal(ours.softmax_if_specified(scores, 0.5), theirs.softmax_if_specified(scores, 0.5))


@pytest.mark.parametrize("method", [*TRAINABLE, "absolute:T=5"])
def test_methods_in_torch_are_those_of_the_package(method):
    torch.manual_seed(0)
    centres = torch.randn(5, 32)
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4])
    support, queries = centres[labels] + torch.randn(12, 32), centres.repeat(20, 1) + torch.randn(100, 32)
    model = FewShotClassifier(method=method)
    model.process_support_set(support, labels)
    clf = ts.FewShotClassifier(method).fit(support.numpy(), labels.numpy())
    assert (model(queries).argmax(1).numpy() == clf.predict(queries.numpy())).all()
    if method != "matching":
        assert np.allclose(model.prototypes.numpy(), clf.prototypes_, atol=1e-5)


@pytest.mark.parametrize("method", ["relabel", "median", "nearest:k=3", "linear"])
def test_other_methods_predict_and_refuse_to_train(method, loader):
    images, labels, queries, answers, _ = next(iter(loader))
    model = FewShotClassifier(network(), method=method)
    model.process_support_set(images, labels)
    scores = model(queries)
    clf = ts.FewShotClassifier(method).fit(model.support_features.detach().numpy(), labels.numpy())
    assert (scores.argmax(1).numpy() == clf.predict(model.compute_features(queries).detach().numpy())).all()
    with pytest.raises(RuntimeError, match=f"scores of method '{method}' have no gradient.*train with one of protonet, simpleshot"):
        nn.functional.cross_entropy(scores, answers).backward()
    with torch.no_grad():
        assert torch.equal(model(queries), scores) and not model(queries).requires_grad
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(queries), scores)


def test_what_cannot_be_classified_is_refused():
    model = FewShotClassifier(method="protonet")
    with pytest.raises(RuntimeError, match=r"call process_support_set\(\) before"):
        model(torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"one row per image, got a tensor of shape \(2, 1, 4, 4\)"):
        model.process_support_set(torch.zeros(2, 1, 4, 4), torch.arange(2))
    with pytest.raises(ValueError, match="3 rows of features, 2 labels"):
        model.process_support_set(torch.zeros(3, 4), torch.arange(2))
    for method, said in [("protonett", "did you mean 'protonet'"), ("cosine:T=-1", "T"), ("tim", "transductive"), ("protonet:k=1", "k")]:
        with pytest.raises(ValueError, match=said):
            FewShotClassifier(method=method).process_support_set(torch.eye(4), torch.arange(4))


def test_it_works_without_easyfsl():
    import subprocess
    import sys

    program = (
        "import sys, torch; sys.modules['easyfsl'] = None\n"
        "from trueshot.easyfsl import FewShotClassifier\n"
        "model = FewShotClassifier(method='protonet', use_softmax=True)\n"
        "model.process_support_set(torch.eye(4), torch.tensor([0, 0, 1, 1]))\n"
        "print(model(torch.eye(4)).argmax(1).tolist(), model.is_transductive())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[0, 0, 1, 1] False\n", done.stderr
