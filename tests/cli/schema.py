"""The schema in docs/json.md, and as much of JSON Schema as it needs."""

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
DEFINITIONS: dict[str, Any] = json.loads(
    PAGE.read_text("utf-8").partition("```json\n")[2].partition("\n```")[0]
)["$defs"]


def check(value: Any, name: str) -> None:
    """Assert that `value` is what the definition `name` says."""
    found = list(_wrong(value, DEFINITIONS[name], "$"))
    assert not found, found


def _wrong(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    if "$ref" in schema:
        return _wrong(value, DEFINITIONS[schema["$ref"].rpartition("/")[2]], where)
    if "anyOf" in schema:
        ways = [_wrong(value, one, where) for one in schema["anyOf"]]
        return [] if [] in ways else min(ways, key=len)
    if value != schema.get("const", value):
        return [f"{where} is {value!r}, not {schema['const']!r}"]
    if value not in schema.get("enum", [value]):
        return [f"{where} is {value!r}, not one of {schema['enum']}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where} is {value!r}, not {kinds}"]
    return [*_inside_object(value, schema, where), *_inside_array(value, schema, where)]


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _inside_object(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{where}.{key} is missing" for key in schema.get("required", ()) if key not in value]
    for key, one in value.items():
        if key in known:
            found += _wrong(one, known[key], f"{where}.{key}")
        elif more is False:
            found.append(f"{where}.{key} is not in the schema")
        elif more is not True:
            found += _wrong(one, more, f"{where}.{key}")
    return found


def _inside_array(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    if not isinstance(value, list) or "items" not in schema:
        return []
    parts = (_wrong(one, schema["items"], f"{where}[{at}]") for at, one in enumerate(value))
    return [wrong for part in parts for wrong in part]
