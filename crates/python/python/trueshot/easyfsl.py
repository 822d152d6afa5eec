"""A few-shot classifier with the interface of easyfsl, on torch tensors.

>>> from trueshot.easyfsl import FewShotClassifier                                  # doctest: +SKIP
>>> model = FewShotClassifier(backbone, method="relabel")                           # doctest: +SKIP
>>> model.process_support_set(support_images, support_labels)                       # doctest: +SKIP
>>> scores = model(query_images)                                                    # doctest: +SKIP

With ``method="protonet"`` the scores are those of ``easyfsl.methods.PrototypicalNetworks``. There are no gradients through
the support set: use it for inference only.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
    from torch import Tensor, nn
except ImportError as problem:
    raise ImportError(f"trueshot.easyfsl needs torch: {problem}\nhint: pip install torch") from None

from ._labels import encode
from . import _native

__all__ = ["FewShotClassifier"]


class FewShotClassifier(nn.Module):
    """A classifier with the interface of ``easyfsl.methods.FewShotClassifier``.

    Parameters
    ----------
    backbone : module that computes the features of images; without one, the images are features
    use_softmax : whether to return probabilities
    method : as in :class:`trueshot.FewShotClassifier`
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        use_softmax: bool = False,
        *,
        method: str = "relabel",
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone if backbone is not None else nn.Identity()
        self.use_softmax = use_softmax
        self.method = method
        self.threads = threads
        self._model: Any = None
        self.prototypes: Tensor | None = None

    @torch.no_grad()
    def compute_features(self, images: Tensor) -> Tensor:
        """Features of images, one row each."""
        features = self.backbone(images)
        if features.dim() != 2:
            raise ValueError(f"the backbone must return one row per image, got a tensor of shape {tuple(features.shape)}")
        return features

    def process_support_set(self, support_images: Tensor, support_labels: Tensor) -> None:
        """Fit to labelled images. Labels are the class indices 0, 1, .."""
        features = self.compute_features(support_images)
        labels = encode(support_labels.cpu().numpy(), len(features), "support_labels")
        rows = _rows(features)
        self._model = _native.Classifier.fit(rows, labels.codes, labels.names, self.method, self.threads)
        known = self._model.prototypes()
        self._centre, self._by_cosine = None, False
        self.prototypes = None
        if known is not None:
            vectors, centre, self._by_cosine = known
            self.prototypes = torch.from_numpy(vectors).to(features.device)
            self._centre = None if centre is None else torch.from_numpy(centre).to(features.device)

    def forward(self, query_images: Tensor) -> Tensor:
        """Scores of every class for every image; the predicted class has the largest."""
        if self._model is None:
            raise RuntimeError("call process_support_set() before classifying queries")
        scores = self._scores(self.compute_features(query_images))
        return scores.softmax(-1) if self.use_softmax else scores

    def _scores(self, features: Tensor) -> Tensor:
        if self.prototypes is None:
            probabilities = self._model.predict_proba(_rows(features), self.threads)
            return torch.from_numpy(probabilities).clamp_min(1e-30).log().to(features.device)
        rows, prototypes = features.to(self.prototypes.dtype), self.prototypes
        if self._by_cosine:
            return nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(prototypes, dim=1).T
        if self._centre is not None:
            rows = nn.functional.normalize(rows - self._centre, dim=1)
        return -torch.cdist(rows, prototypes)

    @staticmethod
    def is_transductive() -> bool:
        """False: every query is classified independently."""
        return False


def _rows(features: Tensor) -> Any:
    return features.detach().to("cpu", torch.float32).contiguous().numpy()
