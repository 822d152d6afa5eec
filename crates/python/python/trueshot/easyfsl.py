"""A few-shot classifier with the interface of easyfsl, on torch tensors.

>>> from trueshot.easyfsl import FewShotClassifier                                  # doctest: +SKIP
>>> model = FewShotClassifier(backbone, method="relabel")                           # doctest: +SKIP
>>> model.process_support_set(support_images, support_labels)                       # doctest: +SKIP
>>> scores = model(query_images)                                                    # doctest: +SKIP

It is an ``easyfsl.methods.FewShotClassifier`` if easyfsl is installed. With ``method="protonet"`` the scores are those of
``easyfsl.methods.PrototypicalNetworks``.

The methods protonet, simpleshot, matching, euclidean, absolute and cosine are computed in torch, so the loss of an episode
trains the backbone. The scores of other methods have no gradient, and ``backward()`` raises an error that says so: train the
backbone with one of these methods, then use any method with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

try:
    import torch
    from torch import Tensor, nn
except ImportError as problem:
    raise ImportError(f"trueshot.easyfsl needs torch: {problem}\nhint: pip install torch") from None

try:
    from easyfsl.methods import FewShotClassifier as _Base
except ImportError:
    _Base = nn.Module

import numpy as np

from . import _native
from ._labels import Labels, encode

__all__ = ["FewShotClassifier"]


class FewShotClassifier(_Base):  # type: ignore[misc, valid-type]
    """A classifier with the interface of ``easyfsl.methods.FewShotClassifier``.

    Parameters
    ----------
    backbone : torch.nn.Module, optional
        Computes the features of images, one row per image. Default: the images are features.
    use_softmax : bool
        Whether to return probabilities instead of scores.
    feature_centering : tensor, optional
        Vector that is subtracted from all features.
    feature_normalization : float, optional
        Norm (the ``p`` of ``torch.nn.functional.normalize``) by which features are divided after centring.
    method : str
        As in :class:`trueshot.FewShotClassifier`.
    threads : int, optional
        Number of threads of methods that are not computed in torch.

    Attributes
    ----------
    support_features, support_labels : tensors
        The support set.
    prototypes : tensor of shape (classes, features)
        One prototype per class; empty if the method has none. For simpleshot, of the centred rows of unit length.
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        use_softmax: bool = False,
        feature_centering: Tensor | None = None,
        feature_normalization: float | None = None,
        *,
        method: str = "relabel",
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone if backbone is not None else nn.Identity()
        self.use_softmax = use_softmax
        self.feature_centering = torch.tensor(0) if feature_centering is None else feature_centering
        self.feature_normalization = feature_normalization
        self.method = method
        self.threads = threads
        self.prototypes = torch.tensor(())
        self.support_features = torch.tensor(())
        self.support_labels = torch.tensor(())
        self._fitted: _Nearest | _Matching | _Native | None = None

    def compute_features(self, images: Tensor) -> Tensor:
        """Features of images, one row each, after centring and normalization."""
        features = self.backbone(images)
        if features.dim() != 2:
            raise ValueError(f"the backbone must return one row per image, got a tensor of shape {tuple(features.shape)}")
        features = features - self.feature_centering.to(features.device)
        if self.feature_normalization is None:
            return features
        return nn.functional.normalize(features, p=self.feature_normalization, dim=1)

    def process_support_set(self, support_images: Tensor, support_labels: Tensor) -> None:
        """Fit to labelled images. Labels are the class indices 0, 1, .."""
        self.compute_prototypes_and_store_support_set(support_images, support_labels)

    def compute_prototypes_and_store_support_set(self, support_images: Tensor, support_labels: Tensor) -> None:
        """Compute the features and the prototypes of labelled images, and store them."""
        features = self.compute_features(support_images)
        labels = torch.as_tensor(support_labels)
        encoded = encode(labels.detach().cpu().numpy(), len(features), "support_labels")
        method = _TorchMethod.parse(self.method)
        if method is None:
            self._fitted = _Native(features, encoded, self.method, self.threads)
        else:
            codes = torch.from_numpy(encoded.codes).to(features.device)
            self._fitted = method.fit(features, [codes == code for code in range(len(encoded.names))])
        self.support_features, self.support_labels, self.prototypes = features, labels, self._fitted.prototypes

    def forward(self, query_images: Tensor) -> Tensor:
        """Scores of every class for every image; the predicted class has the largest."""
        if self._fitted is None:
            raise RuntimeError("call process_support_set() before classifying queries")
        return self.softmax_if_specified(self._fitted.scores(self.compute_features(query_images)))

    def softmax_if_specified(self, output: Tensor, temperature: float = 1.0) -> Tensor:
        """Probabilities from scores times ``temperature`` if ``use_softmax`` is set; otherwise the scores."""
        return (temperature * output).softmax(-1) if self.use_softmax else output

    @staticmethod
    def is_transductive() -> bool:
        """False: every query is classified independently."""
        return False


class _TorchMethod:
    """A method that is computed in torch, with gradients. Definitions and defaults are those of the native module.

    ``temperature`` divides similarities before a softmax (euclidean, absolute, cosine). ``centre`` says what simpleshot
    subtracts from rows, the mean of the support set or nothing, and ``by_cosine`` whether it compares cosines or
    distances.
    """

    NAMES = ("protonet", "simpleshot", "matching", "euclidean", "absolute", "cosine")

    def __init__(self, name: str, parameters: dict[str, str]) -> None:
        self.name = name
        self.temperature = float(parameters.get("T", 0.2 if name == "cosine" else 25))
        self.centre = parameters.get("centre", "support")
        self.by_cosine = parameters.get("metric", "cosine") == "cosine"

    @staticmethod
    def parse(text: str) -> _TorchMethod | None:
        """The method of a text such as ``cosine:T=0.5``; None if the native module computes it."""
        name, *given = text.split(":")
        parameters = dict(part.partition("=")[::2] for part in given)
        # Any other centre is a file, which only the native module reads.
        if name not in _TorchMethod.NAMES or parameters.get("centre", "none") not in ("none", "support"):
            return None
        # Fitting two rows with the native module raises an error for parameters that do not exist or are out of range.
        _native.Classifier.fit(np.eye(2, dtype=np.float32), np.arange(2), ["0", "1"], text, 1)
        return _TorchMethod(name, parameters)

    def fit(self, features: Tensor, members: list[Tensor]) -> _Nearest | _Matching:
        """Fit to features and, for every class, a mask of its items."""
        if self.name == "matching":
            return _Matching(features, members)
        if self.name != "simpleshot":
            return _Nearest(torch.stack([self._weights(features[items]) @ features[items] for items in members]))
        centre = features.mean(0) if self.centre == "support" else torch.zeros_like(features[0])
        # simpleshot: means of centred rows of unit length.
        rows = nn.functional.normalize(features - centre, dim=1)
        means = torch.stack([rows[items].mean(0) for items in members])
        return _Nearest(nn.functional.normalize(means, dim=1) if self.by_cosine else means, centre)

    def _weights(self, items: Tensor) -> Tensor:
        """The weights of the items of one class, ``[items]``, which sum to 1.

        Except for protonet, a softmax over the mean similarity of each item to the others of its class: an item with a
        wrong label is probably less similar, and counts less.
        """
        if self.name == "protonet":
            return torch.full_like(items[:, 0], 1 / len(items))
        if self.name == "cosine":
            units = nn.functional.normalize(items, dim=1)
            # The similarity of an item to itself does not count. The distances below are 0 there anyway.
            similarities = (units @ units.T) * (1 - torch.eye(len(items), dtype=items.dtype, device=items.device))
        else:
            differences = items[:, None] - items[None]
            powers = differences.square() if self.name == "euclidean" else differences.abs()
            similarities = -powers.sum(-1)
        # The mean over the other items; a single item has no others.
        return (similarities.sum(1) / max(len(items) - 1, 1) / self.temperature).softmax(0)


@dataclass
class _Nearest:
    """Scores are minus the distances to one prototype per class."""

    prototypes: Tensor
    """``[classes, features]``"""
    centre: Tensor | None = None
    """Subtracted from rows, which are then scaled to unit length; None if rows are compared unchanged."""

    def scores(self, queries: Tensor) -> Tensor:
        rows = queries if self.centre is None else nn.functional.normalize(queries - self.centre, dim=1)
        return -torch.cdist(rows, self.prototypes)


@dataclass
class _Matching:
    """Scores are the logarithms of the sums of exp(cosine) over the items of every class."""

    features: Tensor
    """The support items."""
    members: list[Tensor]
    """For every class, a mask of its items."""
    prototypes: Tensor = field(default_factory=lambda: torch.tensor(()))

    def scores(self, queries: Tensor) -> Tensor:
        cosines = nn.functional.normalize(queries, dim=1) @ nn.functional.normalize(self.features, dim=1).T
        return torch.stack([cosines[:, items].logsumexp(1) for items in self.members], dim=1)


class _Native:
    """A method that the native module computes, without gradients."""

    def __init__(self, features: Tensor, labels: Labels, method: str, threads: int | None) -> None:
        self.support, self.method, self.threads = features, method, threads
        self.model = _native.Classifier.fit(_rows(features), labels.codes, labels.names, method, threads)
        vectors, centre, self.by_cosine = self.model.prototypes() or (np.empty(0, np.float32), None, False)
        self.prototypes = torch.from_numpy(vectors).to(features.device)
        self.centre = None if centre is None else torch.from_numpy(centre).to(features.device)

    def scores(self, queries: Tensor) -> Tensor:
        return _WithoutGradient.apply(self._scores(queries.detach()), queries, self.support, self.method)

    def _scores(self, queries: Tensor) -> Tensor:
        # Without prototypes, scores are logarithms of probabilities. The lower bound keeps them finite.
        if len(self.prototypes) == 0:
            probabilities = torch.from_numpy(self.model.predict_proba(_rows(queries), self.threads))
            return probabilities.clamp_min(1e-30).log().to(queries.device)
        rows = queries.to(self.prototypes.dtype)
        if self.by_cosine:
            return nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(self.prototypes, dim=1).T
        return _Nearest(self.prototypes, self.centre).scores(rows)


class _WithoutGradient(torch.autograd.Function):
    """Scores computed outside of torch, whose backward pass raises an error."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, queries: Tensor, support: Tensor, method: str) -> Tensor:
        ctx.method = method
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            f"the scores of method {ctx.method!r} have no gradient, so it cannot train a backbone: train with one of "
            f"{', '.join(_TorchMethod.NAMES)}, then use the trained backbone with {ctx.method!r}"
        )


def _rows(features: Tensor) -> Any:
    """Features as an array for the native module."""
    return features.detach().to("cpu", torch.float32).contiguous().numpy()
