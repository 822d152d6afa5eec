"""Networks of PyTorch as backbones, the networks that compute embeddings: name and hash, device, precision, transform.

:func:`embed` wraps the user's model in a :class:`Network`, and takes the transform of images from
:func:`default_transform` or :func:`given_transform`. The hashes here identify a network in files and caches: the same
weights and code give the same hash in every process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from types import CodeType
from typing import Any

# Types of values whose ``repr`` is the same in every process.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Network:
    """A module of PyTorch, or a function of a batch of images; calling it computes the output for a batch.

    ``module`` is the module whose weights determine the output, and ``hash`` its hash; both are None for a function.
    """

    def __init__(self, model: Any, name: str | None, device: Any, dtype: Any) -> None:
        import torch

        self._torch = torch
        self.module = _module_of(torch, model)
        self._forward: Callable[[Any], Any] = model
        if model is self.module and hasattr(model, "encode_image"):
            self._forward = model.encode_image
        self.device = self._checked_device(device)
        self._dtype, self._autocast = self._precision(dtype)
        self.name = name or _name(model, self.module)
        self.hash = None if self.module is None else _weights_hash(self.module)

    @property
    def backbone(self) -> str:
        """The name and the hash, as embeddings files name a network."""
        return f"{self.name} (torch)" if self.hash is None else f"{self.name} (torch, {self.hash})"

    @property
    def computes_in_half(self) -> bool:
        """Whether numbers above 65,504 become infinite."""
        return self._torch.float16 in (self._autocast, self._dtype)

    def identity(self) -> str:
        """Text for the key of a cache that differs if the output may differ: weights, code, precision, GPU and PyTorch.

        Of a function, only the name is known.
        """
        torch = self._torch
        is_gpu = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if is_gpu else self.device.type
        method = getattr(self._forward, "__qualname__", "")
        network = [self.name] if self.module is None else [str(self.hash), _code(self.module), method]
        return "\0".join([*network, str(self._autocast), device, torch.__version__])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode (no dropout, fixed batch norm) and no gradients; the modes are restored at the end."""
        modules = [] if self.module is None else list(self.module.modules())
        modes = [module.training for module in modules]
        try:
            if self.module is not None:
                self.module.eval()
            with self._torch.inference_mode():
                yield
        finally:
            for module, mode in zip(modules, modes):
                module.training = mode

    def __call__(self, images: Any) -> Any:
        """The output for a batch, which is moved to the device; floats are converted to the precision of the weights."""
        dtype = self._dtype if images.is_floating_point() else images.dtype
        images = images.to(self.device, dtype)
        cast = nullcontext() if self._autocast is None else self._torch.autocast(self.device.type, self._autocast)
        with cast:
            return self._forward(images)

    def _tensors(self) -> Iterator[Any]:
        """Parameters and buffers, such as the statistics of batch norm; nothing for a function."""
        return iter(()) if self.module is None else chain(self.module.parameters(), self.module.buffers())

    def _checked_device(self, device: Any) -> Any:
        """The device to compute on: where the model is, which must be the given one if there is one."""
        if any(tensor.device.type == "meta" for tensor in self._tensors()):
            raise ValueError(
                "the model is on the device meta, where weights have no values: create it on the CPU, or load its weights "
                "with model.load_state_dict(weights, assign=True)"
            )
        if device is None:
            return next((tensor.device for tensor in self._tensors()), self._torch.device("cpu"))
        try:
            wanted = self._torch.device(device)
        except (RuntimeError, TypeError) as problem:
            raise ValueError(f"device is {device!r}: {problem}") from None
        for tensor in self._tensors():
            found = tensor.device
            is_other = wanted.index is not None and found.index is not None and wanted.index != found.index
            if found.type != wanted.type or is_other:
                raise ValueError(
                    f"the model is on {found}, but device is {str(wanted)!r}: "
                    f"move it with model.to({str(wanted)!r}), or leave device out"
                )
        return wanted

    def _precision(self, dtype: Any) -> tuple[Any, Any]:
        """The type of the weights, and the type that autocast computes in, or None if that is the same."""
        torch = self._torch
        stored = next((tensor.dtype for tensor in self._tensors() if tensor.is_floating_point()), torch.float32)
        if dtype is None:
            return stored, None
        wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if wanted not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise ValueError(f"dtype is {dtype!r}; allowed: 'float32', 'float16', 'bfloat16', 'float64' or the same of torch")
        if wanted == stored:
            return stored, None
        if stored == torch.float32 and wanted != torch.float64:
            return stored, wanted
        raise ValueError(f"the weights of the model are {stored}, but dtype is {wanted}: convert it with model.to({wanted})")


def _module_of(torch: Any, model: Any) -> Any:
    """The module whose weights determine the output; None for a function."""
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}; give an object, such as {model.__name__}()")
    if isinstance(model, torch.nn.Module):
        _check_initialized(torch, model)
        return getattr(model, "_orig_mod", model)  # unwraps torch.compile
    owner = getattr(model, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return owner
    if callable(model):
        return None
    hint = f": create it first, such as timm.create_model({model!r}, num_classes=0)" if isinstance(model, str) else ""
    raise TypeError(f"model must be a torch.nn.Module or a function of a batch of images, got {type(model).__name__}{hint}")


def _check_initialized(torch: Any, model: Any) -> None:
    """Raise an error if a lazy layer of PyTorch, whose weights are made in the first call, has none yet."""
    lazy = torch.nn.parameter.UninitializedTensorMixin
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if isinstance(value, lazy):
            raise ValueError(f"the lazy layer with {name!r} has no weights yet: call the model on a batch of images first")


def _name(model: Any, module: Any) -> str:
    """The name of a model in timm, or else of its class or function."""
    if module is None:
        return getattr(model, "__name__", type(model).__name__)
    known = getattr(module, "pretrained_cfg", None)
    if isinstance(known, dict) and known.get("architecture"):
        return known["architecture"]
    return type(module).__name__


def _weights_hash(module: Any) -> str:
    """Hash of the layers, the plain attributes and the weights: 16 hexadecimal digits."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    digest.update(_without_addresses(repr(module)).encode())
    for name, part in module.named_modules():
        public = {key: value for key, value in vars(part).items() if key != "training" and not key.startswith("_")}
        plain = sorted(f"{key}={value!r}" for key, value in public.items() if isinstance(value, _PLAIN))
        digest.update(f"{name}{plain}".encode())
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(_without_addresses(repr(value)).encode())
    return digest.hexdigest()


def _without_addresses(text: str) -> str:
    """A ``repr`` without memory addresses, which differ in every process."""
    return re.sub(" at 0x[0-9a-fA-F]+", "", text)


def _code(module: Any) -> str:
    """Hash of the code of a module's classes, except those of PyTorch, which are identified by its version."""
    digest = hashlib.blake2b(digest_size=16)
    kinds = {f"{type(part).__module__}.{type(part).__qualname__}": type(part) for part in module.modules()}
    for name in sorted(kinds):
        digest.update(name.encode())
        if not name.startswith("torch.nn."):
            digest.update(describe(kinds[name]).encode())
    for part in module.modules():
        # Functions that were assigned to a module, for example to replace its method `forward`.
        assigned = [value for value in vars(part).values() if hasattr(value, "__code__")]
        digest.update("".join(map(describe, assigned)).encode())
    return digest.hexdigest()


def describe(value: Any, depth: int = 6) -> str:
    """A text that differs if a function, a transform or its settings differ, for hashes.

    It contains the byte code and the constants of functions, the values they captured, and the attributes of objects,
    down to ``depth`` levels, which also ends cycles. What a function reads from global variables is not part of it.
    """
    if depth == 0:
        return "..."
    # The parts of the text; the first is the type.
    inner = [type(value).__qualname__]
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, CodeType):
        inner += [value.co_code.hex(), repr(value.co_names), *(describe(part, depth - 1) for part in value.co_consts)]
    elif isinstance(value, (list, tuple)):
        inner += [describe(part, depth - 1) for part in value]
    elif isinstance(value, dict):
        inner += [f"{key!r}: {describe(part, depth - 1)}" for key, part in value.items()]
    elif isinstance(value, type):
        methods = {name: part for name, part in vars(value).items() if hasattr(part, "__code__")}
        inner += [value.__qualname__, describe(methods, depth - 1)]
    elif hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        owner = getattr(value, "__self__", None)
        inner += [describe(part, depth - 1) for part in (value.__code__, value.__defaults__, cells, owner)]
    else:
        inner.append(_without_addresses(repr(value)))
        inner.append(describe(getattr(value, "__dict__", None), depth - 1))
        if type(value).__module__.split(".")[0] not in ("torch", "torchvision", "numpy", "PIL", "builtins"):
            inner.append(describe(type(value), depth - 1))
    return f"({', '.join(inner)})"


def default_transform(model: Any, module: Any) -> Callable[[Any], Any]:
    """The transform that a model of timm or open_clip was trained with, without augmentation."""
    package = type(module).__module__.split(".")[0]
    if package == "timm" and hasattr(module, "pretrained_cfg"):
        from timm.data import create_transform, resolve_model_data_config

        return create_transform(**resolve_model_data_config(module), is_training=False)
    if package == "open_clip":
        from open_clip.model import get_model_preprocess_cfg
        from open_clip.transform import PreprocessCfg, image_transform_v2

        return image_transform_v2(PreprocessCfg(**get_model_preprocess_cfg(module)), is_train=False)
    raise ValueError(
        f"transform is needed to embed a folder: {type(model).__name__} does not say how its images are prepared. Give a "
        "transform of torchvision, weights of torchvision, or a function from a Pillow image to a tensor"
    )


def given_transform(transform: Any) -> Callable[[Any], Any]:
    """The transform itself; if weights of torchvision are given, the transform they were trained with."""
    # Objects with weights of torchvision have these two attributes.
    if hasattr(transform, "transforms") and hasattr(transform, "url"):
        return transform.transforms()
    if not callable(transform):
        raise TypeError(f"transform must be a function from a Pillow image to a tensor, got {type(transform).__name__}")
    return transform
