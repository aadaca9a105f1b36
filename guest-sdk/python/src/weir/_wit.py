"""The bindings of ``weir:inference``: those that componentize-py makes, or outside a component ones that keep everything in memory."""

try:
    from componentize_py_types import Err
    from wit_world.imports import models, objects, tensors

    IN_COMPONENT = True
except ImportError:
    from weir._memory import Err, models, objects, tensors

    IN_COMPONENT = False

if IN_COMPONENT:
    from weir import _encodings as _encodings

__all__ = ["Err", "IN_COMPONENT", "models", "objects", "tensors"]
