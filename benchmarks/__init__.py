"""Side-by-side measurements of asynclock, its peers and the limit: ``python -m benchmarks``.

This package is imported in the environments of the peers too, so nothing but the standard
library may be imported here, in ``worker.py`` and in ``adapters/__init__.py``.
"""
