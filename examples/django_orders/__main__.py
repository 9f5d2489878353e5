"""Sends the buyers of `examples/threaded_orders` to the Django project."""

from __future__ import annotations

import asyncio
import sys

from examples.threaded_orders.__main__ import main

if __name__ == "__main__":
    sys.exit(asyncio.run(main("examples.django_orders.project")))
