"""Slides from the chapters: what stands on which slide (deck), in which words (prose), what the
instructor reads beside it (reasons), and how it becomes a page (page, printing)."""
