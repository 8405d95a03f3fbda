"""A class on one server: the hub, its accounts, what it hands out and takes back."""
