"""HTML from Jinja templates, which are in the folders `templates` of tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def rendered(template: str, **values: Any) -> str:
    """Return a template filled in with values; they are escaped, except where it says `safe`.

    Args:
        template: its path in tools, such as "grading/templates/class.html".
        values: by their names in the template.
    """
    return _templates.get_template(template).render(values)
