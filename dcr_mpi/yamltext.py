"""YAML for configurations: the only door to PyYAML. Plain data in, plain data out, nothing silently dropped."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from .errors import UsageError


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, without YAML 1.1's traps that bite in a configuration."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # "<<": its keys yield to the mapping's own
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(key_node, f"key {key!r} is a {type(key).__name__}: put it in quotes")
            if key in seen:
                raise _problem(key_node, f"key {key!r} is here twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


# PyYAML takes 1e-3 for text, as YAML 1.1 says; everybody else takes it for a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)


def parse(text: str | bytes, what: str) -> Any:
    """The one document of a YAML text.

    Raises
    ------
    UsageError
        Not YAML, not UTF-8, a key twice or a key that is not text; names ``what`` and the line.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{what}, line {mark.line + 1}, column {mark.column + 1}" if mark else what
        raise UsageError(place, found=f"{error.context or ''} {error.problem or ''}".strip(), expected="YAML") from None
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError) as error:  # ValueError: an impossible date
        raise UsageError(what, found=" ".join(str(error).split())[:200], expected="YAML in UTF-8") from None


def parse_own(text: bytes) -> Any:
    """A YAML text of this package's own, which is known to be right, by libyaml's parser where there is one.

    That takes a tenth of the time and is worse at saying where an error is: people's texts go through :func:`parse`.
    """
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe loaders)


def _problem(node: yaml.Node, text: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)
