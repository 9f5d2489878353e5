"""asynclock: an asyncio-native distributed lock on Redis.

The public names are imported when the first of them is used. Otherwise the command line would have
to import the whole library before it could handle Ctrl-C or print its version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; importing typing would take longer
if TYPE_CHECKING:
    from . import _surface
    from ._surface import *  # noqa: F403 - all of them

    __version__: str
    __all__ = ["__version__"]
    __all__ += _surface.__all__
else:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("asynclock")
        if name == "__all__" or not name.startswith("_"):
            from . import _surface

            public = {one: getattr(_surface, one) for one in _surface.__all__}
            globals().update(public, __all__=["__version__", *public])
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
