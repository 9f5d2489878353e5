"""Integrations: FastAPI, aiohttp, and a live page. Each needs the extra of its name."""
