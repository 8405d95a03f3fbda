"""A class on one server: the hub, its accounts, and what it hands out."""
