"""The configuration's JSON schema: fills defaults in and says in a user's words what is wrong. Door to jsonschema."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

from ..errors import UsageError
from ..yamltext import parse_own

Node = Mapping[str, Any]
_SECRET = ("secret", "password", "passwd", "token", "access_key", "credential")
_LIMITS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_TYPES = {
    "null": "null", "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "array": "a list", "object": "a section (keys and values)",
}  # fmt: skip


@cache
def schema() -> dict[str, Any]:
    """The schema as plain data; do not change it."""
    plain: dict[str, Any] = parse_own((resources.files(__package__) / "config.schema.yaml").read_bytes())
    return plain


def walk(node: Node | None = None, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every dotted key with its part of the schema, sections included; ``<name>`` stands for a free one."""
    node = schema() if node is None else node
    free = _free(node)
    for name, inner in [*node.get("properties", {}).items(), *([("<name>", free)] if "properties" in free else [])]:
        yield prefix + name, inner
        yield from walk(inner, f"{prefix}{name}.")


def fill(node: Node, value: Any) -> Any:
    """A copy of ``value`` with the defaults of missing keys. Values of the wrong type stay for :func:`validate`."""
    if not isinstance(value, dict):
        return value
    known, free = node.get("properties", {}), _free(node)
    out = {key: fill(known.get(key, free), item) for key, item in value.items()}
    for key, inner in known.items():
        if key not in out and "default" in inner:
            out[key] = fill(inner, copy.deepcopy(inner["default"]))
    return out


def validate(value: Any, what: str) -> None:
    """Check a filled configuration.

    Raises
    ------
    UsageError
        The first key (in the file's order of depth and name) that is wrong, and how many more there are.
    """
    validator = jsonschema.Draft202012Validator(schema())
    problems = sorted(validator.iter_errors(value), key=lambda e: (len(e.path), list(map(str, e.path))))
    if problems:
        raise _explain(problems[0], what, len(problems) - 1)


def _free(node: Node) -> Node:
    """The schema of freely named keys, where a section has them; else an empty one."""
    extra = node.get("additionalProperties")
    return extra if isinstance(extra, dict) else {}


def _explain(error: jsonschema.ValidationError, what: str, more: int) -> UsageError:
    path = ".".join(map(str, error.absolute_path))
    node: Any = error.schema
    tail = f"; {more} more to mend after it" if more else ""
    if error.validator == "additionalProperties":
        name = next(k for k in error.instance if k not in node["properties"])
        return _unknown(f"{path}.{name}" if path else name, list(node["properties"]), what, tail)
    found, verb = _literal(error.instance), "correct it"
    if error.validator == "required":
        name = next(k for k in error.validator_value if k not in error.instance)
        path, node = f"{path}.{name}" if path else name, node["properties"][name]
        found, verb = "nothing", "add it"
    if path.split(".")[0] == "keys":
        found = "a value that is not shown here"  # somebody may have put a key in the place of its file
    about = str(node.get("description", "see configs/README.md")).rstrip(".")
    return UsageError(f"{what}: key {path}", found=found, expected=_expected(node), remedy=f"{verb}: {about}{tail}")


def _unknown(path: str, siblings: list[str], what: str, tail: str) -> UsageError:
    name = path.rpartition(".")[2]
    if path.split(".")[0] == "keys":
        remedy = f"a key is in a file, or in DCR_KEY in the environment, never in here{tail}"
        expected = f"one of {', '.join(siblings)}"
        shown = path if len(path) < 24 else "keys"  # somebody may have put a key in the place of a name, too
        return UsageError(f"{what}: key {shown}", found="an unknown key", expected=expected, remedy=remedy)
    if any(word in name.lower() for word in _SECRET):
        remedy = f"give credentials by the standard AWS chain (environment, profile, role){tail}"
        return UsageError(f"{what}: key {path}", found="a key for a secret", expected="none in here", remedy=remedy)
    every = [key for key, _ in walk()]
    near = difflib.get_close_matches(name, siblings, 1) or [key for key in every if key.rpartition(".")[2] == name]
    near = near or difflib.get_close_matches(path, every, 1)
    remedy = f"did you mean {near[0]}?" if near else "configs/README.md has every key"
    return UsageError(f"{what}: key {path}", found="an unknown key", expected=f"one of {', '.join(siblings)}",
                      remedy=remedy + tail)  # fmt: skip


def _literal(value: Any) -> str:
    """A value about as YAML shows it, cut to a line."""
    if value is None:
        return "null"
    return (str(value).lower() if isinstance(value, bool) else repr(value))[:120]


def _expected(node: Node) -> str:
    if "enum" in node:
        return "one of " + ", ".join(map(str, node["enum"]))
    if "pattern" in node:  # the one pattern there is: names
        return (
            "text (in quotes if it looks like a number or date): 1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first"
        )
    kinds = node.get("type", "string")
    text = " or ".join(_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    if "items" in node:
        text = f"a list of {node.get('maxItems', 'any length')}, each {_expected(node['items'])}"
    limits = [f"{words} {node[key]}" for key, words in _LIMITS.items() if key in node]
    limits += ["not empty"] * ("minLength" in node) + ["none twice"] * ("uniqueItems" in node)
    return text + (", " + " and ".join(limits) if limits else "")
