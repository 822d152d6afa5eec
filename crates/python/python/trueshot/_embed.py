"""Embeddings of images by a network of PyTorch (:func:`embed`): from a folder of class folders or from a loader.

:func:`embed` puts four parts together: a ``Network`` (``_networks``); a source of batches, :class:`_Folder` or
:class:`_Loader`, which have the same methods; :class:`_Rows`, which runs the network on the batches and checks what it
returns; and a :class:`_CacheEntry`, which stores the rows of a whole run in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._embeddings import Embeddings
from ._evaluation import whole
from ._image_folder import ImageFolder, list_images, read_image, unreadable_reason
from ._networks import Network, default_transform, describe, given_transform
from ._progress import counting

# The numbers of classes of ImageNet classifiers, 1k to 22k, with and without a background class. A network with this
# number of outputs probably returns a score per class instead of features.
_CLASS_COUNTS = (1000, 1001, 21_841, 21_843, 11_221)
# The largest number of skipped files that a message names.
_LISTED = 5


def embed(
    model: Any,
    data: Any,
    *,
    transform: Any = None,
    name: str | None = None,
    device: Any = None,
    dtype: Any = None,
    output: int | str | None = None,
    pool: str | None = None,
    classes: Sequence[str] | None = None,
    batch_size: int = 64,
    unreadable: str = "skip",
    cache: str | os.PathLike[str] | None = None,
    cache_name: str | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], Any] = False,
) -> Embeddings:
    """Embed images with a network of your own: any module of PyTorch, or a model of timm, torchvision or open_clip.

    The network runs in evaluation mode and without gradients; its training mode is restored afterwards.

    Parameters
    ----------
    model : torch.nn.Module, or a function of a batch of images
        It must return one row of features per image. For a model of open_clip, ``encode_image`` is called.
    data : path of a folder, loader, data set or tensor
        The folders in a folder are the classes, as for ``trueshot embed``; Pillow decodes the images. A loader gives
        batches: tensors of images, or pairs (images, labels). A data set of PyTorch and a tensor are divided into batches.
    transform : function from a Pillow image (RGB) to a tensor, or weights of torchvision
        For folders. Default: the transform that a model of timm or open_clip was trained with.
    name : str, optional
        Name of the network in files and reports. Default: its name in timm, or its class.
    device : str or torch.device, optional
        Device that computes; the model must be there. Default: where the model is.
    dtype : str or torch.dtype, optional
        Precision of the computation: ``"float32"``, ``"float16"`` or ``"bfloat16"``. With a model in float32, the last two
        use autocast. Default: the precision of the model. Rows are float16 if the network returns float16, else float32.
    output : int or str, optional
        Which entry to take if the network returns a tuple, a list or a dictionary.
    pool : "mean", optional
        Average feature maps of shape (images, channels, height, width) over height and width.
    classes : list of str, optional
        Names of the classes, for loaders whose labels are integers. Default: ``classes`` of the loader's data set.
    batch_size : int
        Images per batch, where the loader does not decide.
    unreadable : "skip" or "raise"
        What to do with images that cannot be decoded: list them in ``skipped`` of the result with a warning, or raise an
        error.
    cache : path of a folder, optional
        Keep the result there, and return it if the same network embeds the same images again. The key is a hash of the
        weights and the code of the network, the transform, the other settings, and the contents of the images.
    cache_name : str, optional
        Identifies the data instead of their contents; needed for loaders, and for models that are functions.
    threads : int, optional
        Number of threads that decode images. Default: one per core, at most 8.
    progress : bool or callable
        True for a progress bar, or a function that is called with the number of finished images and the total (0 if it is
        not known).

    Returns
    -------
    Embeddings

    Examples
    --------
    >>> import trueshot as ts
    >>> rows = ts.embed(model, "photos", transform=transform)                # doctest: +SKIP
    >>> ts.audit(rows)                                                       # doctest: +SKIP
    """
    settings = _Settings(output, pool, whole(batch_size, "batch_size", 1), unreadable, _thread_count(threads))
    _require("torch", "a model of PyTorch needs it")
    network = Network(model, name, device, dtype)
    if isinstance(data, (str, os.PathLike)):
        source: _Folder | _Loader = _Folder(os.fspath(data), _folder_transform(model, network, transform), classes)
    else:
        if transform is not None:
            raise ValueError("transform is for folders; the images of a loader are transformed by its data set")
        source = _Loader(data, settings.batch_size, classes)
    entry = None if cache is None else _CacheEntry(cache, cache_name, network, source, settings)
    if cache is None and cache_name is not None:
        raise ValueError("cache_name is given without cache: give the folder of the cache too")
    result = entry.read(source) if entry else None
    if result is None:
        result = _embed(network, source, settings, progress)
        if entry:
            entry.write(result, source)
    return source.finish(result, network.backbone)


@dataclass(frozen=True)
class _Settings:
    """Arguments of :func:`embed` about images and the output of the network, checked."""

    output: int | str | None
    pool: str | None
    batch_size: int
    unreadable: str
    threads: int

    def __post_init__(self) -> None:
        if self.pool not in (None, "mean"):
            raise ValueError(f"pool is {self.pool!r}; allowed: None, 'mean'")
        if self.unreadable not in ("skip", "raise"):
            raise ValueError(f"unreadable is {self.unreadable!r}; allowed: 'skip', 'raise'")


@dataclass
class _Result:
    """Rows with their labels, names and unreadable images: what the cache stores."""

    features: np.ndarray
    """``[images, dimensions]``, float32 or float16."""
    labels: np.ndarray | None
    """Names of classes from a folder; from a loader its labels, which may be integers."""
    items: list[str] | None
    """The names of the rows; None for a loader."""
    unreadable: list[tuple[str, str]]
    """Images that cannot be decoded, with the reason."""


@dataclass(frozen=True)
class _Batch:
    """Images for one call of the network, with their labels and names if the source has them."""

    images: Any
    """A tensor whose first axis is the batch."""
    labels: np.ndarray | None
    items: list[str] | None

    def name(self, row: int, first: int) -> str:
        """The name of a row in errors; ``first`` is the number of rows before this batch."""
        return repr(self.items[row]) if self.items else f"row {first + row}"


def _thread_count(threads: int | None) -> int:
    """Threads that decode images; more than 8 are used only if the user asks for them."""
    return min(os.cpu_count() or 1, 8) if threads is None else whole(threads, "threads", 1)


def _require(module: str, why: str) -> None:
    """Raise an error that says how to install a module, if it cannot be imported."""
    import importlib

    try:
        importlib.import_module(module)
    except ImportError as problem:
        package = {"PIL": "pillow"}.get(module, module)
        raise ImportError(f"{package} is not installed, and {why}: pip install {package}") from problem


def _embed(network: Network, source: _Folder | _Loader, settings: _Settings, progress: Any) -> _Result:
    """Run the network on all batches of a source."""
    rows, labels, items, done = _Rows(network, settings), [], [], 0
    with counting(progress, source.total, "image") as report, network.evaluating():
        for batch in source.batches(settings):
            rows.add(batch)
            done += len(batch.images)
            if batch.labels is not None:
                labels.append(batch.labels)
            items += batch.items or []
            if report is not None:
                report(done)
    source.check_complete(settings)
    if done == 0:
        raise ValueError(source.empty_message())
    return _Result(rows.features(), np.concatenate(labels) if labels else None, items or None, source.unreadable)


class _Rows:
    """The rows of all batches so far, and the checks of a network's output."""

    def __init__(self, network: Network, settings: _Settings) -> None:
        self._network, self._settings = network, settings
        self._parts: list[np.ndarray] = []
        self._count = 0

    def add(self, batch: _Batch) -> None:
        """Run the network on a batch, check the output and keep its rows."""
        import torch

        number, shape = len(self._parts) + 1, list(batch.images.shape)
        try:
            output = self._network(batch.images)
        except torch.cuda.OutOfMemoryError:
            # Programs catch this type to try again with smaller batches.
            raise
        except Exception as problem:
            given = f"images of shape {shape}, {batch.images.dtype}"
            text = str(problem) if isinstance(problem, RuntimeError) else f"{type(problem).__name__}: {problem}"
            is_float = batch.images.is_floating_point()
            hint = "" if is_float else "\nhint: networks take images of floats; divide pixels by 255, as ToTensor of torchvision does"
            raise RuntimeError(f"the network failed on batch {number}, {given}: {text}{hint}") from problem
        tensor = self._two_dimensional(self._chosen(output))
        if len(tensor) != shape[0]:
            raise ValueError(f"the network returned {len(tensor)} rows for {shape[0]} images (batch {number})")
        if not tensor.is_floating_point():
            raise ValueError(f"the network returned {tensor.dtype}; features are floats")
        if tensor.shape[1] == 0:
            raise ValueError(f"the network returned no features for the images of batch {number}")
        if tensor.device.type == "meta":
            raise ValueError("the network returned a tensor on the device meta, which has no values")
        # Float16 is kept; other types, such as bfloat16, which NumPy does not have, become float32.
        half = tensor.dtype == torch.float16
        part = (tensor if half else tensor.float()).cpu().numpy()
        if self._parts and part.shape[1] != self._parts[0].shape[1]:
            raise ValueError(
                f"the network returned {part.shape[1]} features per image in batch {number}, but {self._parts[0].shape[1]} "
                "before: the number must not depend on the images"
            )
        self._check_finite(part, batch)
        self._parts.append(part)
        self._count += len(part)

    def features(self) -> np.ndarray:
        """The rows of all batches, ``[images, dimensions]``."""
        features = np.concatenate(self._parts)
        if features.shape[1] in _CLASS_COUNTS:
            warnings.warn(
                f"{features.shape[1]} numbers per image look like a score per class; features from before the last layer are "
                "better: create a model of timm with num_classes=0, or replace the last layer by torch.nn.Identity()",
                # Above this function, `_embed` and `embed`, 4 is the caller of `embed`.
                stacklevel=4,
            )
        return features

    def _chosen(self, output: Any) -> Any:
        """The tensor of features among the outputs of the network, as the argument ``output`` names it."""
        import torch

        wanted = self._settings.output
        if isinstance(output, torch.Tensor):
            if wanted is not None:
                raise ValueError(f"output is {wanted!r}, but the network returns a single tensor {list(output.shape)}")
            return output
        if not isinstance(output, (tuple, list, Mapping)):
            raise ValueError(f"the network returned an object of type {type(output).__name__}; expected a tensor with one row per image")
        entries = dict(output) if isinstance(output, Mapping) else dict(enumerate(output))
        if wanted in entries and isinstance(entries[wanted], torch.Tensor):
            return entries[wanted]
        known = ", ".join(f"{key!r}: {_kind(value)}" for key, value in entries.items())
        description = f"the network returned a {type(output).__name__} with {known}"
        tensors = {key: value for key, value in entries.items() if isinstance(value, torch.Tensor)}
        # The hint proposes the first matrix, or else the first tensor.
        choice = next((key for key, value in tensors.items() if value.ndim == 2), next(iter(tensors), None))
        if wanted is None:
            raise ValueError(f"{description}: choose the features with output={choice!r} or another of these")
        raise ValueError(f"{description}, but no tensor {wanted!r}: output must be one of these")

    def _two_dimensional(self, tensor: Any) -> Any:
        """Features ``[images, dimensions]``; feature maps are averaged if ``pool`` says so."""
        if tensor.ndim == 4 and self._settings.pool == "mean":
            return tensor.mean(dim=(2, 3))
        if tensor.ndim == 2:
            return tensor
        hint = "give a function that returns one row per image"
        if tensor.ndim == 4:
            hint = "pool='mean' averages feature maps over height and width"
        elif tensor.ndim == 3:
            hint = "of tokens take one, such as model=lambda images: network(images)[:, 0]"
        raise ValueError(f"the network returned a tensor of shape {list(tensor.shape)}; expected [images, features]: {hint}")

    def _check_finite(self, part: np.ndarray, batch: _Batch) -> None:
        """Raise an error that names the first image with NaN or infinity."""
        bad = ~np.isfinite(part)
        if not bad.any():
            return
        row = int(np.flatnonzero(bad.any(axis=1))[0])
        value = "NaN" if np.isnan(part[row]).any() else "infinity"
        where = batch.name(row, self._count)
        count = int(bad.any(axis=1).sum())
        hint = "check the image and the weights"
        if self._network.computes_in_half:
            hint = "float16 has no numbers above 65,504: try dtype='bfloat16' or 'float32'"
        raise ValueError(f"the network returned {value} for {where} ({count} of {len(part)} rows of its batch): {hint}")


def _kind(value: Any) -> str:
    """The type of an entry of a batch or an output, with the shape of a tensor, for messages."""
    return f"tensor {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__


def _folder_transform(model: Any, network: Network, transform: Any) -> Callable[[Any], Any]:
    """The function from a Pillow image to a tensor: the given one, or that of the model."""
    _require("PIL", "it decodes the images of a folder")
    if transform is None:
        return default_transform(model, network.module)
    return given_transform(transform)


class _Folder:
    """The images of a folder, decoded and transformed by threads while the network computes.

    This and :class:`_Loader` have ``total`` (the number of images, 0 if unknown), ``unreadable`` (the images that could
    not be read so far, with the reason), ``batches``, ``check_complete``, ``finish``, ``empty_message``, and for the key
    of a cache ``transform_description`` (empty for a loader, which transforms its images itself) and ``contents`` (None
    if the images are not known in advance).
    """

    def __init__(self, path: str, transform: Callable[[Any], Any], classes: Any) -> None:
        if classes is not None:
            raise ValueError("classes is for loaders; the classes of a folder are the folders in it")
        self._transform = transform
        self._folder: ImageFolder = list_images(path)
        # The name and the shape of the first image: all tensors must have the same shape.
        self._shape: tuple[str, list[int]] | None = None
        self.unreadable: list[tuple[str, str]] = []

    @property
    def total(self) -> int:
        return len(self._folder.items)

    def empty_message(self) -> str:
        """Why there are no rows."""
        return f"no image in {self._folder.path!r} can be read: {_listed(self.unreadable)}"

    def transform_description(self) -> str:
        """Text that differs if the transform differs."""
        return describe(self._transform)

    def contents(self) -> str | None:
        """Names and hashes of all images."""
        return "\n".join(self._folder.content_hashes())

    def batches(self, settings: _Settings) -> Iterator[_Batch]:
        """Batches in the order of the files, without images that cannot be decoded.

        When a batch is passed on, the images of the next one are already being decoded (``following``), while the
        caller runs the network. The last pass, with ``start`` None, only yields what is left.
        """
        rows = list(range(self.total))
        starts = range(0, len(rows), settings.batch_size)
        with ThreadPoolExecutor(settings.threads) as threads:
            following: list[tuple[int, Future[Any]]] = []
            for start in [*starts, None]:
                # The first pass has no current batch yet.
                current, following = following, []
                if start is not None:
                    following = [(row, threads.submit(self._image, row)) for row in rows[start : start + settings.batch_size]]
                yield from self._batch([(row, future.result()) for row, future in current])

    def _image(self, row: int) -> Any:
        """The tensor of an image, or the reason why it cannot be read."""
        item = self._folder.items[row]
        path = self._folder.file(item)
        try:
            image = read_image(path)
        except Exception as problem:  # decoders raise any type
            return unreadable_reason(path, problem)
        try:
            tensor = self._transform(image)
        except Exception as problem:
            raise ValueError(f"transform failed on {item!r}: {type(problem).__name__}: {problem}") from problem
        import torch

        if not isinstance(tensor, (torch.Tensor, np.ndarray)):
            kind = type(tensor).__name__
            raise TypeError(f"transform returned an object of type {kind} for {item!r}; expected a tensor: end it with ToTensor()")
        return torch.as_tensor(tensor)

    def _batch(self, images: list[tuple[int, Any]]) -> Iterator[_Batch]:
        """A batch of pairs (row, tensor or reason), or none if no image of it can be read."""
        import torch

        items, tensors, labels = [], [], []
        for row, image in images:
            item = self._folder.items[row]
            if isinstance(image, str):
                self.unreadable.append((item, image))
                continue
            self._shape = self._shape or (item, list(image.shape))
            if list(image.shape) != self._shape[1]:
                raise ValueError(
                    f"transform made images of different shapes: {self._shape[1]} of {self._shape[0]!r}, "
                    f"{list(image.shape)} of {item!r}; resize and crop to one size"
                )
            items.append(item)
            tensors.append(image)
            labels += self._folder.labels[row : row + 1] if self._folder.labels else []
        if items:
            yield _Batch(torch.stack(tensors), np.array(labels) if labels else None, items)

    def check_complete(self, settings: _Settings) -> None:
        """Raise an error if an image could not be read and ``unreadable`` is "raise"."""
        if self.unreadable and settings.unreadable == "raise":
            count = len(self.unreadable)
            raise ValueError(f"{count} image{'s' * (count > 1)} cannot be read: {_listed(self.unreadable)}")

    def finish(self, result: _Result, backbone: str) -> Embeddings:
        """The rows as embeddings; warns about skipped files."""
        skipped = sorted([*self._folder.skipped, *result.unreadable])
        if skipped:
            count = len(skipped)
            warnings.warn(f"{count} file{'s were' if count > 1 else ' was'} skipped: {_listed(skipped)}", stacklevel=3)
        return Embeddings(
            result.features,
            result.labels,
            items=result.items,
            backbone=backbone,
            folder=self._folder.path,
            skipped=skipped,
        )


def _listed(skipped: list[tuple[str, str]]) -> str:
    """The first skipped files, one per line, for messages."""
    lines = [f"\n  {item}: {reason}" for item, reason in skipped[:_LISTED]]
    more = len(skipped) - len(lines)
    return "".join(lines) + (f"\n  and {more} more" if more else "")


class _Loader:
    """The batches of a loader, a data set or a tensor; see :class:`_Folder` for the methods."""

    def __init__(self, data: Any, batch_size: int, classes: Sequence[str] | None) -> None:
        import torch
        from torch.utils.data import DataLoader, Dataset, IterableDataset

        if isinstance(data, np.ndarray):
            data = torch.as_tensor(data)
        if isinstance(data, torch.Tensor):
            if data.ndim == 0:
                raise ValueError("data is a tensor without axes; the first axis must be the images")
            data = data.split(batch_size)
            self.total = sum(map(len, data))
        else:
            if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
                data = DataLoader(data, batch_size=batch_size)
            if not hasattr(data, "__iter__"):
                kind = type(data).__name__
                raise TypeError(f"data must be a folder, a loader, a data set or a tensor of images, got {kind}")
            self.total = _length(data)
        self._data = data
        self._dataset = getattr(data, "dataset", None)
        self._classes = _class_names(classes, self._dataset)
        self.unreadable: list[tuple[str, str]] = []

    def empty_message(self) -> str:
        return "the loader has no batches, so there is nothing to embed"

    def transform_description(self) -> str:
        return ""

    def contents(self) -> str | None:
        return None

    def check_complete(self, settings: _Settings) -> None:
        pass

    def batches(self, settings: _Settings) -> Iterator[_Batch]:
        has_labels: bool | None = None
        for number, given in enumerate(self._data, 1):
            batch = _loader_batch(given, number)
            if has_labels is None:
                has_labels = batch.labels is not None
            elif has_labels != (batch.labels is not None):
                raise ValueError(f"batch {number} is {'without' if has_labels else 'with'} labels, unlike those before")
            yield batch

    def finish(self, result: _Result, backbone: str) -> Embeddings:
        labels = result.labels
        if labels is not None and self._classes is not None and labels.dtype.kind in "iu":
            if labels.min() < 0 or labels.max() >= len(self._classes):
                outside = labels.max() if labels.min() >= 0 else labels.min()
                raise ValueError(f"a label is {outside}, but classes has {len(self._classes)} names: allowed are 0 to the last")
            labels = self._classes[labels]
        items, folder = self._names(len(result.features))
        return Embeddings(result.features, labels, items=items, backbone=backbone, folder=folder)

    def _names(self, rows: int) -> tuple[list[str] | None, str | None]:
        """Names from the files of a data set like torchvision's ImageFolder, if the loader keeps its order."""
        from torch.utils.data import SequentialSampler

        samples, root = getattr(self._dataset, "samples", None), getattr(self._dataset, "root", None)
        sampler, batch_sampler = (getattr(self._data, name, None) for name in ("sampler", "batch_sampler"))
        # A loader with a user-defined batch sampler has a sequential sampler as well, but does not use it.
        is_used = batch_sampler is None or getattr(batch_sampler, "sampler", None) is sampler
        is_ordered = is_used and isinstance(sampler, SequentialSampler)
        if not is_ordered or not isinstance(samples, list) or len(samples) != rows or not isinstance(root, (str, os.PathLike)):
            return None, None
        paths = [sample[0] for sample in samples if isinstance(sample, tuple) and isinstance(sample[0], str)]
        if len(paths) != rows:
            return None, None
        return [os.path.relpath(path, root).replace(os.sep, "/") for path in paths], os.fspath(root)


def _length(data: Any) -> int:
    """The number of images that a loader gives; 0 if it is not known."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset

    try:
        if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
            return len(data.dataset)
        batches = data.batch_sampler
        # PyTorch's own sampler, not a user-defined one derived from it.
        if type(batches) is BatchSampler:
            rows = len(batches.sampler)  # type: ignore[arg-type]
            return rows - rows % batches.batch_size if batches.drop_last else rows
        return sum(map(len, batches)) if isinstance(batches, (list, tuple)) else 0
    except (AttributeError, TypeError):
        return 0


def _class_names(classes: Sequence[str] | None, dataset: Any) -> np.ndarray | None:
    """The names of the classes by the integer labels of a loader: as given, or those of its data set, or None."""
    if classes is None:
        classes = getattr(dataset, "classes", None)
        if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
            return None
    names = [str(name) for name in classes]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"classes contains {repeated!r} twice")
    return np.array(names)


def _loader_batch(given: Any, number: int) -> _Batch:
    """A batch from what a loader gives: a tensor of images, or a pair (images, labels)."""
    import torch

    parts = list(given) if isinstance(given, (tuple, list)) else [given]
    images = parts[0] if parts else None
    if isinstance(images, np.ndarray):
        images = torch.as_tensor(images)
    if not isinstance(images, torch.Tensor) or len(parts) > 2 or images.ndim == 0:
        kind = f"a {type(given).__name__}"
        if isinstance(given, Mapping):
            kind += f" with {', '.join(map(repr, given))}"
        elif isinstance(given, (tuple, list)):
            kind += f" of {', '.join(map(_kind, parts[:4]))}{', ..' * (len(parts) > 4)}"
        raise TypeError(
            f"batch {number} of the loader is {kind}; expected a tensor of images, or a pair (images, labels). "
            "Convert it: ts.embed(model, ((batch['image'], batch['label']) for batch in loader))"
        )
    if len(images) == 0:
        raise ValueError(f"batch {number} of the loader has no images")
    labels = None
    if len(parts) == 2:
        labels = np.asarray(parts[1].detach().cpu() if isinstance(parts[1], torch.Tensor) else parts[1])
        if labels.shape != (len(images),):
            raise ValueError(
                f"batch {number} of the loader has {len(images)} images and labels of shape {list(labels.shape)}; "
                "expected one label per image"
            )
    return _Batch(images, labels, None)


class _CacheEntry:
    """The file of one result in a cache, named after a hash of everything that the result depends on.

    It is written under a temporary name and renamed, so it is never incomplete. A file that cannot be used is ignored.
    """

    def __init__(
        self, folder: Any, name: str | None, network: Network, source: _Folder | _Loader, settings: _Settings
    ) -> None:
        self._folder = os.fspath(folder)
        if os.path.exists(self._folder) and not os.path.isdir(self._folder):
            raise NotADirectoryError(f"cache is {self._folder!r}, which is a file; give a folder")
        if name is None and network.hash is None:
            raise ValueError("a function has no weights that identify it: give cache_name too, a name for function and data")
        contents = None if name is not None else source.contents()
        if name is None and contents is None:
            raise ValueError("the images of a loader are only known after they are loaded: give cache_name too, a name for them")
        # The first part is the version of the format of the file; other versions have other keys.
        parts = ["trueshot-embed/3", network.identity(), repr(settings.output), repr(settings.pool)]
        parts.append(source.transform_description())
        parts.append(f"contents {contents}" if name is None else f"name {name}")
        self._key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        self._raises = settings.unreadable == "raise"
        self._path = os.path.join(self._folder, f"{self._key}.npz")

    def read(self, source: _Folder | _Loader) -> _Result | None:
        """The result, if it exists, is intact and was computed from the same number of images."""
        try:
            with np.load(self._path, allow_pickle=False) as file:
                note = json.loads(str(file["note"]))
                items = file["items"].tolist() if "items" in file else None
                labels = file["labels"] if "labels" in file else None
                unreadable = [(item, reason) for item, reason in note["unreadable"]]
                result = _Result(file["features"], labels, items, unreadable)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return None
        # Embedding again raises the error with the reasons.
        if unreadable and self._raises:
            return None
        return result if note["key"] == self._key and note["total"] == source.total else None

    def write(self, result: _Result, source: _Folder | _Loader) -> None:
        """Store a result; if that fails, warn and continue without the cache."""
        note = json.dumps({"key": self._key, "total": source.total, "unreadable": result.unreadable})
        arrays = {"features": result.features, "note": np.array(note)}
        if result.labels is not None:
            arrays["labels"] = result.labels
        if result.items is not None:
            arrays["items"] = np.array(result.items)
        try:
            os.makedirs(self._folder, exist_ok=True)
            _write_whole(self._path, arrays)
        except OSError as problem:
            warnings.warn(f"the cache {self._folder!r} cannot be written: {problem}", stacklevel=3)


def _write_whole(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write an ``.npz`` file under a temporary name in the same folder, and rename it when it is complete."""
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
