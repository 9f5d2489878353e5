"""Clients of stores: one that only notes what it is asked for."""

from typing import Any


class Wire:
    """A client as redis-py's that notes what a store asks for, and answers as a test says."""

    def __init__(self, *answer: int) -> None:
        self.answer = list(answer or (1, 0))
        self.asked: list[tuple[list[Any], list[Any]]] = []

    async def execute_command(self, *words: Any) -> Any:
        raise AssertionError(f"only its script was to be called, not {words}")

    def register_script(self, source: str) -> Any:
        async def call(keys: list[Any], args: list[Any]) -> list[int]:
            assert "redis.call" in source
            self.asked.append((keys, args))
            return self.answer

        return call
