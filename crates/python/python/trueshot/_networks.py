"""Networks of PyTorch as backbones, the networks that compute embeddings: name and hash, device, precision, transform.

:func:`embed` wraps the user's model in a :class:`Network`, and takes the transform of images from
:func:`default_transform` or :func:`given_transform`. The hashes here identify a network in files and caches: the same
weights and code give the same hash in every process.
"""

from __future__ import annotations

import copyreg
import hashlib
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
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
        network = [self.name] if self.module is None else [str(self.hash), _description(self.module), method]
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
    """Hash of the layers, the plain attributes and the weights: 16 hexadecimal digits.

    It is part of files, so it stays the same between versions. :func:`_description` has everything else that may change
    the output.
    """
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
            digest.update(_tensor_bytes(value))
        else:
            digest.update(_without_addresses(repr(value)).encode())
    return digest.hexdigest()


def _tensor_bytes(tensor: Any) -> Any:
    """The values of a tensor as a buffer of bytes."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _without_addresses(text: str) -> str:
    """A ``repr`` without memory addresses, which differ in every process."""
    return re.sub(" at 0x[0-9a-fA-F]+", "", text)


def _description(module: Any) -> str:
    """Hash of what determines the output besides the weights: code, attributes, hooks and non-persistent buffers.

    The classes of PyTorch are identified by its version.
    """
    import torch

    descriptions = _Descriptions()
    # Attributes may refer to layers and weights, which are described elsewhere.
    named = chain(module.named_modules(), module.named_parameters(), module.named_buffers())
    for number, (_, part) in enumerate(named):
        descriptions.add(part, f"(part {number})")
    stored = module.state_dict()
    parts = [f"{name}: {_tensor_text(value)}" for name, value in module.named_buffers() if name not in stored]
    internal = {*vars(torch.nn.Module()), "_compiled_call_impl"}
    for name, part in module.named_modules():
        # The code that torch.fx generates from a graph is a method of the module's class.
        attributes = {
            key: value
            for key, value in vars(part).items()
            if key not in internal and not type(value).__module__.startswith("torch.fx.")
        }
        hooks = [list(vars(part).get(kind, {}).values()) for kind in ("_forward_pre_hooks", "_forward_hooks")]
        parts += [name, descriptions.of(type(part)), descriptions.of_attributes(attributes), descriptions.of(hooks)]
    return _digest(parts)


def describe(value: Any) -> str:
    """A text that differs if a function, a transform or its settings differ, for hashes; the same in every process.

    It depends on the byte code and the constants of functions, the values they captured, the attributes of objects, and
    the classes that do not belong to a library. What a function reads from global variables is not part of it. Objects
    without attributes that pickle cannot take apart, such as locks, count as equal if their ``repr`` is equal.
    """
    return _Descriptions().of(value)


class _Descriptions:
    """Descriptions of values, each of which is described once."""

    def __init__(self) -> None:
        # By id. The values are kept too: the id of a deleted one could be used again.
        self._finished: dict[int, tuple[Any, str]] = {}
        # The ids of the values that are being described, from the outermost to the innermost, with their depths.
        self._depths: dict[int, int] = {}

    def add(self, value: Any, description: str) -> None:
        """Use this description for an object."""
        self._finished[id(value)] = (value, description)

    def of(self, value: Any) -> str:
        """The description of any value."""
        if type(value) in _PLAIN:
            return repr(value)
        key, depth = id(value), len(self._depths)
        if key in self._finished:
            return self._finished[key][1]
        if key in self._depths:
            return f"(cycle of {depth - self._depths[key]})"
        if depth >= _MAX_DEPTH:
            # Equal to nothing, because what is further inside is not known.
            return f"(too deep: {secrets.token_hex(16)})"
        self._depths[key] = depth
        text = _digest([type(value).__qualname__, *self._parts(value)])
        del self._depths[key]
        self.add(value, text)
        return text

    def of_attributes(self, attributes: Mapping[Any, Any]) -> str:
        """The description of names with values, whose order does not matter."""
        return _digest(f"{key!r}: {self.of(attributes[key])}" for key in sorted(attributes, key=repr))

    def _parts(self, value: Any) -> list[str]:
        """The descriptions of what a value consists of."""
        if isinstance(value, CodeType):
            return [value.co_code.hex(), repr(value.co_names), *map(self.of, value.co_consts)]
        if isinstance(value, type):
            return self._class_parts(value)
        if isinstance(value, ModuleType):
            return [value.__name__, str(getattr(value, "__version__", ""))]
        if isinstance(value, (staticmethod, classmethod)):
            return [self.of(value.__func__)]
        if isinstance(value, property):
            return [self.of(value.fget), self.of(value.fset), self.of(value.fdel)]
        if isinstance(value, MethodType):
            return [self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, FunctionType):
            return self._function_parts(value)
        if isinstance(value, partial):
            return [self.of(value.func), self.of(value.args), self.of_attributes(value.keywords)]
        if _is_tensor(value):
            return [_tensor_text(value)]
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            return self._container_parts(value)
        return self._object_parts(value)

    def _container_parts(self, value: Any) -> list[str]:
        """The entries of a container, with the class and the attributes, which subclasses have."""
        parts = [self.of(type(value)), self.of_attributes(getattr(value, "__dict__", {}))]
        if isinstance(value, (list, tuple)):
            return [*parts, *map(self.of, value)]
        if isinstance(value, (set, frozenset)):
            return [*parts, *sorted(map(self.of, value))]
        # In their order: a transform may apply the values one after the other.
        return [*parts, *(f"{self.of(key)}: {self.of(part)}" for key, part in value.items())]

    def _class_parts(self, kind: type) -> list[str]:
        """The name of a class, and its attributes and base classes if it does not belong to a library."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if _is_of_library(kind):
            return [name]
        attributes = {key: part for key, part in vars(kind).items() if key not in _CLASS_DETAILS}
        return [name, self.of_attributes(attributes), *map(self.of, kind.__bases__)]

    def _function_parts(self, function: FunctionType) -> list[str]:
        """The code of a function, its defaults, the values it captured and its attributes."""
        captured = []
        for cell in function.__closure__ or ():
            try:
                captured.append([cell.cell_contents])
            except ValueError:  # A variable without a value.
                captured.append([])
        defaults = [self.of(function.__defaults__), self.of_attributes(function.__kwdefaults__ or {})]
        return [self.of(function.__code__), *defaults, self.of(captured), self.of_attributes(vars(function))]

    def _object_parts(self, value: Any) -> list[str]:
        """The class of an object, its attributes, and what pickle would store of it, or else its ``repr``."""
        kind = type(value)
        parts = [self.of(kind)]
        reduced: Any
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # Objects that cannot be pickled raise errors of any type.
            reduced = _without_addresses(repr(value))
        # What pickle stores of an object of a library is complete, and of a logger, for example, it is only the name.
        if isinstance(reduced, str) or not _is_of_library(kind):
            parts.append(self.of_attributes(getattr(value, "__dict__", {})))
        if isinstance(reduced, str):
            return [*parts, reduced]
        # Function, arguments, state, entries of a list, entries of a dictionary.
        function, arguments, state, entries, items = (*reduced, None, None, None)[:5]
        # The state is the attributes, or a pair of these and the attributes in slots.
        states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        described = [self.of_attributes(part) if type(part) is dict else self.of(part) for part in states]
        listed = [self.of(list(part)) for part in (entries, items) if part is not None]
        return [*parts, self.of(function), self.of(arguments), *described, *listed]


# Attributes of classes that have no effect on what their objects compute.
_CLASS_DETAILS = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __annotate__ __annotate_func__ "
    "__annotations_cache__ __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl __parameters__ "
    "__orig_bases__ __slotnames__".split()
)
# Descriptions go no deeper than this number of levels, because Python limits the depth of calls.
_MAX_DEPTH = 100
# The flag Py_TPFLAGS_HEAPTYPE of CPython. Classes that C code defines statically, such as those built into Python, do not
# have it.
_MADE_AT_RUN_TIME = 1 << 9
# Packages whose classes are identified by their names.
_LIBRARIES = frozenset({"torch", "torchvision", "numpy", "PIL", *sys.stdlib_module_names})


def _is_of_library(kind: type) -> bool:
    """Whether a class belongs to a library and has not been made at run time."""
    if not kind.__flags__ & _MADE_AT_RUN_TIME:
        return True
    package = kind.__module__.partition(".")[0]
    # A class that is made at run time, for example in a function, is not what its module has under its name.
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return package in _LIBRARIES and found is kind


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch, which need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_text(tensor: Any) -> str:
    """The type, the shape and the hash of the values of a tensor."""
    try:
        values = hashlib.blake2b(_tensor_bytes(tensor), digest_size=16).hexdigest()
    except (RuntimeError, TypeError):  # For example of a sparse tensor.
        values = repr(tensor)
    return f"{tensor.dtype}{tuple(tensor.shape)} {values}"


def _digest(parts: Iterable[str]) -> str:
    """A hash of texts, as text."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return f"({digest.hexdigest()})"


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
