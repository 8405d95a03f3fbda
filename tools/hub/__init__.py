"""A class on one server: the hub, its accounts, collecting, and giving feedback back."""
