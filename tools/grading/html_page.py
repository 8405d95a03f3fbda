"""The frame of all report pages: it loads nothing and runs nothing."""

from __future__ import annotations

from typing import Any

# Blocks for pages: title, images, width, style and body.
FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; {% block images %}{% endblock %}style-src 'unsafe-inline'">
<title>{% block title %}{% endblock %}</title>
<style>
  body { max-width: {% block width %}50rem{% endblock %}; margin: 2rem auto; padding: 0 1rem;
         color: #1a1a1a; background: #fff; font: 16px/1.5 system-ui, sans-serif; }
  h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere; }
  h2 { margin-top: 3rem; }
  pre { background: #f3f3f3; border-left: 4px solid #999; padding: .7rem; overflow-x: auto;
        font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
  a { color: inherit; }
{% block style %}{% endblock %}
</style>
</head>
<body>
{% block body %}{% endblock %}
</body>
</html>
"""


def rendered(page: str, **values: Any) -> str:
    """Return a page as HTML; values are escaped.

    Args:
        page: a Jinja template that begins with `{% extends "frame" %}`.
        values: for the template.
    """
    from jinja2 import DictLoader, Environment

    loader = DictLoader({"frame": FRAME, "page": page})
    environment = Environment(autoescape=True, trim_blocks=True, loader=loader)
    return environment.get_template("page").render(values)
