"""Ready-made parts for applications: FastAPI, aiohttp, a live page. Each needs its extra."""
