"""Side-by-side measurements of asynclock, its peers and the limit: ``python -m benchmarks``.

The environments of the peers import this package too. So this file, ``worker.py`` and
``adapters/__init__.py`` may import only the standard library.
"""
