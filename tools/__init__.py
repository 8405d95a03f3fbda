"""The commands of the course and what they share: `python3 -m tools` lists them."""
